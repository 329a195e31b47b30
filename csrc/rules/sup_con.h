// Supervised contrastive loss. With z = similarity / temperature, P and N the positives and negatives of a row, A = P and N together:
//
//   out:  L = mean over p in P of  log sum over A of e^{z_a}  -  z_p
//   in:   L = log sum over A of e^{z_a}  -  log mean over P of e^{z_p}
//
// Streaming form: both log-sums from one pass, each shifted by the largest of its z. L = softplus(lse_N - lse_P) plus log|P| (in) or
// lse_P - mean z_p (out, 0 for one positive): nothing is lost when the loss is near 0.
// Gradient: dL/dz_n = e^{z_n - lse_A};  in: dL/dz_p = -e^{z_p - lse_P} * sigmoid(lse_N - lse_P);  out: e^{z_p - lse_A} - 1/|P|.
// No positives: 0.
// Reference: Khosla et al., "Supervised Contrastive Learning", NeurIPS 2020.
#pragma once

#include "engine/rule.h"

namespace pairloom::PAIRLOOM_ISA {

template <class T>
struct SupCon : RuleDefaults<T> {
  explicit SupCon(const SupConCall& call) : inside(call.inside) {}

  bool inside;  // the mean over positives stands inside the logarithm

  static constexpr bool kUsesPositiveExtremes = true;
  static constexpr int kSums = 2;          // positives, negatives
  static constexpr int kPositiveSums = 2;  // z - positive_shift, positives

  struct Row {
    T loss = 0;
    T positive_shift = 0;
    T negative_shift = 0;
    T positive_total = 0;  // sum over P of e^{z - positive_shift}
    T negative_total = 0;
    T log_ratio = 0;  // lse_N - lse_P
    T positives = 0;
    // Weights are factors of e^{z - shift}, not e^{z - lse}: for large z, lse itself is rounded coarsely.
    T positive_factor = 0;
    T positive_offset = 0;
    T negative_factor = 0;
  };

  PAIRLOOM_RULE Row begin(const Extremes<T>& extremes) const {
    constexpr T infinity = std::numeric_limits<T>::infinity();
    Row row;
    if (extremes.max_positive > -infinity) row.positive_shift = extremes.max_positive;
    if (extremes.max_negative > -infinity) row.negative_shift = extremes.max_negative;
    return row;
  }

  // The loss depends on differences of z only; see InfoNce::origin.
  PAIRLOOM_RULE T origin(const Row& row) const { return larger(row.positive_shift, row.negative_shift); }

  template <class V, class M>
  PAIRLOOM_INLINE void add(V (&sums)[kSums], V z, M positive, M negative, const Row& row) const {
    const V e = exp(positive ? z - row.positive_shift : z - row.negative_shift);
    sums[0] += positive ? e : V{};
    sums[1] += negative ? e : V{};
  }

  PAIRLOOM_RULE void end_sums(Row& row, const T (&sums)[kSums]) const {
    row.positive_total = sums[0];
    row.negative_total = sums[1];
    row.log_ratio = (row.negative_shift - row.positive_shift) + (std::log(sums[1]) - std::log(sums[0]));
  }

  PAIRLOOM_RULE void add_positive(T* sums, T z, const Row& row) const {
    sums[0] += z - row.positive_shift;
    sums[1] += T{1};
  }

  PAIRLOOM_RULE void end(Row& row, const T* positive_sums) const {
    row.positives = positive_sums[1];
    if (row.positives == T{0}) return;
    const bool in_form = inside || row.positives == T{1};
    const T negative_share = sigmoid(row.log_ratio);
    row.loss =
        softplus(row.log_ratio) + (in_form ? std::log(row.positives) : std::log(row.positive_total) - positive_sums[0] / row.positives);
    row.negative_factor = row.negative_total > T{0} ? negative_share / row.negative_total : negative_share;
    row.positive_factor = (in_form ? -negative_share : sigmoid(-row.log_ratio)) / row.positive_total;
    row.positive_offset = in_form ? T{0} : T{1} / row.positives;
  }

  // The same from sums of e^z and z without shifts, for engine/pair_sweep.h: a weight is then e^z times a factor, minus the offset.
  Row from_totals(T positive_total, T negative_total, T positive_sum, T positives) const {
    Row row;
    const T sums[kSums] = {positive_total, negative_total};
    end_sums(row, sums);
    const T positive_sums[kPositiveSums] = {positive_sum, positives};
    end(row, positive_sums);
    return row;
  }

  template <class V, class M>
  PAIRLOOM_INLINE V weigh(V z, M positive, M negative, const Row& row) const {
    if (row.positives == T{0}) return V{};
    const V e = exp(positive ? z - row.positive_shift : z - row.negative_shift);
    return negative ? e * row.negative_factor : positive ? e * row.positive_factor - row.positive_offset : V{};
  }
};

}  // namespace pairloom::PAIRLOOM_ISA
