// Multi-Similarity loss, with its pair mining on request. With s the similarity, P and N the positives and negatives of a row that
// survive mining:
//
//   L = 1/alpha log(1 + sum over P of e^{-alpha (s - base)}) + 1/beta log(1 + sum over N of e^{beta (s - base)})
//
// Mining with margin epsilon keeps a negative when s + epsilon > min over all positives, a positive when
// s - epsilon < max over all negatives. A row without positives, or without negatives, then keeps nothing.
//
// Streaming form: the extremes decide what is kept and are also the shifts of both log-sum-exps; the second pass sums.
// Gradient: dL/ds = -e^{-alpha (s - base)} / (1 + sum) on kept positives, +e^{beta (s - base)} / (1 + sum) on kept negatives.
// Nothing kept: the loss is exactly 0.
// Reference: Wang et al., "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning", CVPR 2019.
#pragma once

#include "engine/rule.h"

namespace pairloom::PAIRLOOM_ISA {

template <class T>
struct MultiSimilarity : RuleDefaults<T> {
  explicit MultiSimilarity(const MultiSimilarityCall& call)
      : alpha(static_cast<T>(call.alpha)),
        beta(static_cast<T>(call.beta)),
        base(static_cast<T>(call.base)),
        epsilon(static_cast<T>(call.epsilon)),
        mining(call.mining) {}

  T alpha;
  T beta;
  T base;
  T epsilon;
  bool mining;

  static constexpr bool kUsesPositiveExtremes = true;
  static constexpr int kSums = 2;  // positives, negatives

  struct Row {
    T loss = 0;
    T keep_positives_below;
    T keep_negatives_above;
    T positive_shift = 0;
    T negative_shift = 0;
    // 1 / (e^{-shift} + sum of e^{x - shift}): a weight is this times e^{x - shift}, because for large x the logarithm of the whole
    // sum is rounded coarsely.
    T positive_factor = 0;
    T negative_factor = 0;
  };

  PAIRLOOM_RULE Row begin(const Extremes<T>& extremes) const {
    constexpr T infinity = std::numeric_limits<T>::infinity();
    Row row;
    row.keep_positives_below = mining ? extremes.max_negative + epsilon : infinity;
    row.keep_negatives_above = mining ? extremes.min_positive - epsilon : -infinity;
    // The largest term is that of the extreme pair, or there is none: when the extreme is not kept, nothing is.
    if (extremes.min_positive < row.keep_positives_below) row.positive_shift = larger(T{0}, -alpha * (extremes.min_positive - base));
    if (extremes.max_negative > row.keep_negatives_above) row.negative_shift = larger(T{0}, beta * (extremes.max_negative - base));
    return row;
  }

  PAIRLOOM_RULE bool mines() const { return mining; }

  // Written as "not outside" so that NaN is kept and reaches the loss.
  template <class V>
  PAIRLOOM_INLINE auto mined_positive(V s, const Row& row) const {
    return !(s >= row.keep_positives_below);
  }
  template <class V>
  PAIRLOOM_INLINE auto mined_negative(V s, const Row& row) const {
    return !(s <= row.keep_negatives_above);
  }

  template <class V, class M>
  PAIRLOOM_INLINE void add(V (&sums)[kSums], V s, M positive, M negative, const Row& row) const {
    const V centred = s - base;
    const V e = exp(positive ? -alpha * centred - row.positive_shift : beta * centred - row.negative_shift);
    sums[0] += (positive & mined_positive(s, row)) ? e : V{};
    sums[1] += (negative & mined_negative(s, row)) ? e : V{};
  }

  PAIRLOOM_RULE void end_sums(Row& row, const T (&sums)[kSums]) const {
    row.positive_factor = T{1} / (std::exp(-row.positive_shift) + sums[0]);
    row.negative_factor = T{1} / (std::exp(-row.negative_shift) + sums[1]);
    row.loss = (row.positive_shift + log_one_plus(sums[0], row.positive_shift)) / alpha +
               (row.negative_shift + log_one_plus(sums[1], row.negative_shift)) / beta;
  }

  PAIRLOOM_RULE void end(Row&, const T*) const {}

  template <class V, class M>
  PAIRLOOM_INLINE V weigh(V s, M positive, M negative, const Row& row) const {
    const V centred = s - base;
    const V e = exp(positive ? -alpha * centred - row.positive_shift : beta * centred - row.negative_shift);
    return (positive & mined_positive(s, row))   ? e * -row.positive_factor
           : (negative & mined_negative(s, row)) ? e * row.negative_factor
                                                 : V{};
  }

 private:
  // log(e^{-shift} + sum): the 1 of the formula, shifted like the rest.
  PAIRLOOM_RULE static T log_one_plus(T sum, T shift) { return shift == T{0} ? std::log1p(sum) : std::log(std::exp(-shift) + sum); }
};

}  // namespace pairloom::PAIRLOOM_ISA
