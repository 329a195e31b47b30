// InfoNCE. With z = similarity / temperature, P and N the positives and negatives of a row:
//
//   L = mean over p in P of -log( e^{z_p} / (e^{z_p} + sum over n in N of e^{z_n}) )
//
// Streaming form: l = log sum over N of e^{z_n} (one pass, shifted by the largest z_n), then L = mean over P of softplus(l - z_p).
// It needs no e^{z_p} and loses nothing when the loss is near 0. Weights are e^{z - shift} times a factor of the row and not e^{z - l}:
// for large z, l itself is rounded coarsely.
// Gradient: dL/dz_p = -sigmoid(l - z_p) / |P|,  dL/dz_n = e^{z_n - l} * mean over P of sigmoid(l - z_p).
// No negatives: l = -infinity, the loss is exactly 0. No positives: 0.
// Reference: van den Oord et al., "Representation Learning with Contrastive Predictive Coding", 2018; several positives as in
// NT-Xent with class labels, other positives outside the denominator.
#pragma once

#include "engine/rule.h"

namespace pairloom::PAIRLOOM_ISA {

template <class T>
struct InfoNce : RuleDefaults<T> {
  explicit InfoNce(const InfoNceCall&) {}

  static constexpr int kSums = 1;
  static constexpr int kPositiveSums = 3;  // loss, share of the negatives, positives

  struct Row {
    T loss = 0;
    T shift = 0;
    T log_sum = 0;          // l - shift
    T inverse_sum = 0;      // e^{shift - l}
    T negative_share = 0;   // mean over P of sigmoid(l - z_p)
    T negative_factor = 0;  // of e^{z - shift}
    T positive_share = 0;   // 1 / |P|
  };

  PAIRLOOM_RULE Row begin(const Extremes<T>& extremes) const {
    Row row;
    if (extremes.max_negative > -std::numeric_limits<T>::infinity()) row.shift = extremes.max_negative;
    return row;
  }

  // The loss depends on differences of z only, so the slope along the temperature may be measured from anywhere. From the largest
  // negative it does not cancel: at a temperature of 1e-3, z is a thousand and the slope is the difference of such numbers.
  PAIRLOOM_RULE T origin(const Row& row) const { return row.shift; }

  template <class V, class M>
  PAIRLOOM_INLINE void add(V (&sums)[kSums], V z, M, M negative, const Row& row) const {
    sums[0] += negative ? exp(z - row.shift) : V{};
  }

  PAIRLOOM_RULE void end_sums(Row& row, const T (&sums)[kSums]) const {
    row.log_sum = std::log(sums[0]);
    row.inverse_sum = sums[0] == T{0} ? T{0} : T{1} / sums[0];
  }

  PAIRLOOM_RULE void add_positive(T* sums, T z, const Row& row) const {
    const T behind = (row.shift - z) + row.log_sum;
    sums[0] += softplus(behind);
    sums[1] += sigmoid(behind);
    sums[2] += T{1};
  }

  PAIRLOOM_RULE void end(Row& row, const T* sums) const {
    row.positive_share = sums[2] > T{0} ? T{1} / sums[2] : T{0};
    row.loss = sums[0] * row.positive_share;
    row.negative_share = sums[1] * row.positive_share;
    row.negative_factor = row.negative_share * row.inverse_sum;
    if (row.inverse_sum == T{0}) row.positive_share = T{0};  // no negatives: nothing to learn
  }

  template <class V, class M>
  PAIRLOOM_INLINE V weigh(V z, M positive, M negative, const Row& row) const {
    const V e = exp(z - row.shift);
    return negative ? e * row.negative_factor : positive ? -row.positive_share / (T{1} + e * row.inverse_sum) : V{};
  }
};

}  // namespace pairloom::PAIRLOOM_ISA
