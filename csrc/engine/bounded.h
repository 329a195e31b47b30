// Losses whose logits are bounded: e^z is summed as it is, without shifts, so sums over pairs simply add up.
#pragma once

#include <algorithm>
#include <limits>

#include "core/buffer.h"
#include "core/parallel.h"
#include "engine/pairs.h"
#include "engine/rows.h"

namespace pairloom::PAIRLOOM_ISA {

// |z| up to which that is right: e^40 and its sums are far from the limits of float32, and so are their inverses.
constexpr double kLargestLogit = 40;

template <class T>
double largest_norm(const Matrix& m, const Parallel& pool) {
  Buffer<double> norms(m.rows);
  parallel_for(pool, m.rows, [&](int64_t begin, int64_t end) {
    Buffer<T> row(m.dim);
    for (int64_t i = begin; i < end; ++i) {
      copy_row(m, i, row.get());
      norms[i] = std::sqrt(sum_of_squares(row.get(), m.dim));
    }
  });
  double largest = 0;
  for (int64_t i = 0; i < m.rows; ++i) {
    if (std::isnan(norms[i])) return norms[i];
    largest = std::max(largest, norms[i]);
  }
  return largest;
}

// Whether every |z| of this call is at most kLargestLogit, and no embedding is infinite or NaN.
template <class T>
bool bounded_logits(const PairLossCall& call, const Parallel& pool) {
  if (is_distance(call.similarity)) return false;
  double lowest = 1.0;
  if (call.temperature != nullptr) {
    const int64_t count = call.temperature_per_row ? call.rows.rows : 1;
    lowest = std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i < count; ++i) lowest = std::min(lowest, call.temperature[i]);
  }
  double bound = 1.0 / lowest;
  if (!(bound <= kLargestLogit)) return false;
  const double rows = largest_norm<T>(call.rows, pool);
  const double columns = call.self ? rows : largest_norm<T>(call.columns, pool);
  if (call.similarity == Similarity::dot) bound *= rows * columns;
  return rows + columns < std::numeric_limits<double>::infinity() && bound <= kLargestLogit;
}

// What is summed over the pairs of a row (or column), and what its weights are made of: e^z times a factor, minus the offset for
// positives. A rule for bounded logits has from_totals(positive total, negative total, positive sum, positives), see rules/sup_con.h.
// Statistics need those from kTotals on too.
enum PairTotal {
  kPositiveTotal,
  kNegativeTotal,
  kPositiveSum,
  kPositiveCount,
  kTotals,
  kNegativeSum = kTotals,
  kNegativeCount,
  kBestPositive,
  kBestNegative,
  kCounted,
};

constexpr bool is_largest(int kind) { return kind == kBestPositive || kind == kBestNegative; }

// What a total of no pairs is, and one more part of a total.
template <class V>
constexpr V total_of_nothing(int kind) {
  return is_largest(kind) ? -std::numeric_limits<V>::infinity() : V{0};
}
inline void add_to_total(int kind, double& total, double part) { total = is_largest(kind) ? std::max(total, part) : total + part; }

// term(kind, value) for each total of a vector of pairs, e = e^z.
template <bool counted, class V, class M, class F>
PAIRLOOM_INLINE void for_totals(V z, V e, M positive, M negative, F&& term) {
  using T = std::remove_reference_t<decltype(z[0])>;
  term(kNegativeTotal, negative ? e : V{});
  if constexpr (counted) {
    term(kNegativeSum, negative ? z : V{});
    term(kNegativeCount, negative ? splat(T{1}) : V{});
    term(kBestNegative, negative ? z : splat(total_of_nothing<T>(kBestNegative)));
  }
  if (!any(positive)) return;
  term(kPositiveTotal, positive ? e : V{});
  term(kPositiveSum, positive ? z : V{});
  term(kPositiveCount, positive ? splat(T{1}) : V{});
  if constexpr (counted) term(kBestPositive, positive ? z : splat(total_of_nothing<T>(kBestPositive)));
}
template <class V>
PAIRLOOM_INLINE V with_term(int kind, V total, V term) {
  return is_largest(kind) ? larger(total, term) : total + term;
}

// The lanes of a vector of totals, folded.
template <class T>
double fold_lanes(int kind, vec<T> total) {
  return static_cast<double>(is_largest(kind) ? max_lanes<T>(total) : sum_lanes<T>(total));
}

// The statistics (core/types.h) of a row or column that is not ignored; z times `temperature` is the similarity.
inline void add_statistics(const double* totals, bool active, double temperature, double* stats) {
  const double positives = totals[kPositiveCount], negatives = totals[kNegativeCount];
  stats[kAnchors] += 1;
  stats[kPositives] += positives;
  stats[kNegatives] += negatives;
  stats[kMinedPositives] += positives;
  stats[kMinedNegatives] += negatives;
  stats[kAnchorsWithoutPositive] += positives == 0;
  stats[kAnchorsWithoutNegative] += negatives == 0;
  stats[kTop1Hits] += totals[kBestPositive] > totals[kBestNegative];
  stats[kPositiveSimilaritySum] += totals[kPositiveSum] * temperature;
  stats[kNegativeSimilaritySum] += totals[kNegativeSum] * temperature;
  stats[kActiveAnchors] += active;
}

template <class Rule>
typename Rule::Row row_from_totals(const Rule& rule, const double* totals) {
  using T = decltype(Rule::Row::loss);
  return rule.from_totals(static_cast<T>(totals[kPositiveTotal]), static_cast<T>(totals[kNegativeTotal]),
                          static_cast<T>(totals[kPositiveSum]), static_cast<T>(totals[kPositiveCount]));
}

}  // namespace pairloom::PAIRLOOM_ISA
