// What a loss must say about one row of the similarity matrix. Everything else (similarity, chunks, threads, gradients) is the
// engine's (engine/pair_loss.h). A rule is a struct like this:
//
//   template <class T>
//   struct SomeLoss : RuleDefaults<T> {
//     explicit SomeLoss(const SomeLossCall&);               // its parameters
//     static constexpr int kSums = 1;                       // how many sums over the row it needs
//     struct Row { T loss; ... };                           // what it knows of a row; `loss` is the row's loss
//     Row begin(const Extremes<T>&) const;                  // thresholds and shifts, from the extremes of the row
//     void add(V (&sums)[kSums], V s, M positive, M negative, const Row&) const;   // a vector of pairs
//     void end_sums(Row&, const T (&sums)[kSums]) const;
//     void end(Row&, const T* positive_sums) const;         // sets row.loss
//     V weigh(V s, M positive, M negative, const Row&) const;                      // dL_row / ds
//   };
//
// and overrides of what RuleDefaults says, where it needs more.
//
// A rule whose weights are no function of one pair and a few numbers of the row (triplets) takes the whole row instead: it sets kWholeRow
// and has
//
//     struct Row { T loss; int64_t active; int64_t terms; };  // how many terms of the row are above 0, and how many there are
//     struct Scratch { explicit Scratch(int64_t width); ... Buffer<T> slope; };
//     Row row(const T* s, int64_t width, visit, Scratch&) const;   // visit(body) calls body(j, positive, negative) for every vector of the
//                                                                  // row; dL_row / ds goes to scratch.slope
//
// All of them are marked PAIRLOOM_RULE or PAIRLOOM_INLINE: they run on the GPU too, one value at a time (csrc/cuda). Sums are of any order
// and any parts.
//
// It is generic over the value type V: a SIMD vector on the CPU, a scalar in CUDA and in the naive driver; M is the mask that
// comparing two V gives. `s` is the similarity, divided by the temperature where there is one. Lanes that are neither positive nor
// negative carry any value and must add nothing and weigh 0.
#pragma once

#include <cmath>
#include <limits>

#include "core/scalar.h"

namespace pairloom::PAIRLOOM_ISA {

// Columns whose terms are summed in lanes of T; the sums of blocks are added in double. Millions of equal terms in one float
// lane would each be rounded the same way: 5e-3 off for 8 million columns.
constexpr int64_t kSumBlock = 2048;

// Over the pairs of one row; +infinity (minimum) or -infinity (maxima) where there is none.
template <class T>
struct Extremes {
  T min_positive = std::numeric_limits<T>::infinity();
  T max_positive = -std::numeric_limits<T>::infinity();
  T max_negative = -std::numeric_limits<T>::infinity();
};

// What most rules need not say.
template <class T>
struct RuleDefaults {
  static constexpr bool kWholeRow = false;

  // Whether begin() looks at the extremes of the positives; otherwise only max_negative is filled in.
  static constexpr bool kUsesPositiveExtremes = false;

  // Between end_sums() and end(): add_positive() for each positive of the row, into so many sums.
  static constexpr int kPositiveSums = 0;
  template <class Row>
  PAIRLOOM_RULE void add_positive(T*, T, const Row&) const {}

  // Whether most weights may be exactly 0; then the products of the gradients look for what they can skip.
  PAIRLOOM_RULE bool mines() const { return false; }
  // Which pairs take part; all, unless the rule mines.
  template <class V, class Row>
  PAIRLOOM_INLINE auto mined_positive(V s, const Row&) const {
    return (s == s) | (s != s);
  }
  template <class V, class Row>
  PAIRLOOM_INLINE auto mined_negative(V s, const Row&) const {
    return (s == s) | (s != s);
  }

  // dL/dtemperature is summed over s - origin. When the sum of dL/ds over a row is 0, any value may be taken; one near the s that
  // weigh most avoids cancellation.
  template <class Row>
  PAIRLOOM_RULE T origin(const Row&) const {
    return T{0};
  }
};

template <class T>
PAIRLOOM_RULE T softplus(T x) {
  return x > T{0} ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}

template <class T>
PAIRLOOM_RULE T sigmoid(T x) {
  return T{1} / (T{1} + std::exp(-x));
}

}  // namespace pairloom::PAIRLOOM_ISA
