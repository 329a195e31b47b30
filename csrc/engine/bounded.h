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
      double squares = 0;
      for (int64_t k = 0; k < m.dim; ++k) squares += static_cast<double>(row[k]) * static_cast<double>(row[k]);
      norms[i] = std::sqrt(squares);
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
enum PairTotal { kPositiveTotal, kNegativeTotal, kPositiveSum, kPositiveCount, kTotals };

template <class Rule>
typename Rule::Row row_from_totals(const Rule& rule, const double* totals) {
  using T = decltype(Rule::Row::loss);
  return rule.from_totals(static_cast<T>(totals[kPositiveTotal]), static_cast<T>(totals[kNegativeTotal]),
                          static_cast<T>(totals[kPositiveSum]), static_cast<T>(totals[kPositiveCount]));
}

}  // namespace pairloom::PAIRLOOM_ISA
