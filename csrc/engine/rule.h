// What a loss must say about one row of the similarity matrix. Everything else (similarity, chunks, threads, gradients) is the
// engine's (engine/pair_loss.h). A rule is a struct like this:
//
//   template <class T>
//   struct SomeLoss {
//     static constexpr bool kUsesPositiveExtremes = true;   // otherwise only max_negative is known to begin()
//     static constexpr int kSums = 1;                       // how many sums over the row it needs
//     struct Row { T loss; ... };                           // what it knows of a row; `loss` is the row's loss
//     Row begin(const Extremes<T>&) const;                  // thresholds and shifts, from the extremes of the row
//     void add(V (&sums)[kSums], V s, M positive, M negative, const Row&) const;   // a vector of pairs
//     void end_sums(Row&, const T (&sums)[kSums]) const;
//     static constexpr bool kVisitsPositives = true;        // then, for each positive of the row:
//     void add_positive(Row&, T s) const;
//     void end(Row&) const;                                 // sets row.loss
//     V weigh(V s, M positive, M negative, const Row&) const;                      // dL_row / ds
//     T origin(const Row&) const;                           // 0; or, when the sum of dL/ds over a row is 0, any value near the s
//                                                           // that weigh most: dL/dtemperature is summed over s - origin
//     M mined_positive(V s, const Row&) const;              // which of the pairs take part (all, unless the rule mines)
//     M mined_negative(V s, const Row&) const;
//   };
//
// It is generic over the value type V: a SIMD vector on the CPU, a scalar in CUDA and in the naive driver; M is the mask that
// comparing two V gives. `s` is the similarity, divided by the temperature where there is one. Lanes that are neither positive nor
// negative carry any value and must add nothing and weigh 0.
#pragma once

#include <cmath>
#include <limits>

#include "core/simd.h"

namespace pairloom::PAIRLOOM_ISA {

// Over the pairs of one row; +infinity (minimum) or -infinity (maxima) where there is none.
template <class T>
struct Extremes {
  T min_positive = std::numeric_limits<T>::infinity();
  T max_positive = -std::numeric_limits<T>::infinity();
  T max_negative = -std::numeric_limits<T>::infinity();
};

template <class T>
T softplus(T x) {
  return x > T{0} ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}

template <class T>
T sigmoid(T x) {
  return T{1} / (T{1} + std::exp(-x));
}

}  // namespace pairloom::PAIRLOOM_ISA
