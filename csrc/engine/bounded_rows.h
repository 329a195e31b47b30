// The chunk loop of engine/pair_loss.h for bounded logits: e^z takes the place of S as soon as a tile is made, so there is one exponential
// for a pair instead of two, and no search for the largest of a row.
#pragma once

#include "engine/bounded.h"
#include "engine/pair_run.h"

namespace pairloom::PAIRLOOM_ISA {

template <class T, class Rule, class Products>
class BoundedRows : PairRun<T, Products> {
  using Run = PairRun<T, Products>;
  using Run::call_, Run::pool_, Run::n_, Run::m_, Run::dim_, Run::stride_, Run::s_stride_, Run::chunk_rows_, Run::wants_rows_,
      Run::wants_columns_, Run::products_, Run::rows_, Run::row_factor_, Run::s_, Run::d_chunk_, Run::temperature_slope_, Run::pairs_,
      Run::untouched_columns_, Run::in_units, Run::prepare_pairs, Run::pack_columns, Run::weight, Run::scale, Run::load_rows,
      Run::to_logits, Run::to_weights, Run::finish_row, Run::finish_columns, Run::begin_reduction, Run::end_reduction, Run::row_stats,
      Run::add_stats;

  static constexpr int64_t kBlockRows = Products::kBlockRows;

 public:
  BoundedRows(const PairLossCall& call, const Rule& rule, const Parallel& pool) : Run(call, pool), rule_(rule) {}

  // Whether this way serves a call. It must depend neither on which gradients are asked for nor on statistics.
  static bool fits(const PairLossCall& call, const Parallel& pool) { return bounded_logits<T>(call, pool); }

  void run() {
    prepare_pairs();
    pack_columns();
    begin_reduction();
    for (int64_t first = 0; first < n_; first += chunk_rows_) {
      const int64_t count = std::min(chunk_rows_, n_ - first);
      parallel_for(pool_, in_units(count) / Products::kRowUnit, [&](int64_t begin, int64_t end) {
        typename Products::Session session;
        const int64_t last = std::min(end * Products::kRowUnit, count);
        for (int64_t r = begin * Products::kRowUnit; r < last; r += kBlockRows) block(session, first, r, std::min(kBlockRows, last - r));
      });
      add_stats(count);
      if (!wants_columns_) continue;
      constexpr int64_t kUnit = Products::kColumnUnit;
      parallel_for(pool_, (m_ + kUnit - 1) / kUnit, [&](int64_t begin, int64_t end) {
        typename Products::Session session;
        products_.d_columns(session, begin * kUnit, std::min(end * kUnit, m_), 0, count, rows_.get(), s_.get(), first > 0);
      });
    }
    untouched_columns_ = n_ == 0 ? m_ : 0;
    finish_columns();
    end_reduction();
  }

 private:
  void block(typename Products::Session& session, int64_t chunk_first, int64_t r0, int64_t count) {
    const int64_t first = chunk_first + r0;
    T* rows = rows_.get() + r0 * stride_;
    T* s = s_.get() + r0 * s_stride_;
    load_rows(chunk_first, r0, count);
    double totals[kBlockRows][kRowTotals];
    for (int64_t r = 0; r < count; ++r) {
      for (int kind = 0; kind < kRowTotals; ++kind) totals[r][kind] = total_of_nothing<double>(kind);
    }
    for (int64_t j = 0; j < m_; j += Products::kColumnBlock) {
      const int64_t end = std::min(j + Products::kColumnBlock, m_);
      products_.similarities(r0, count, rows, j, end, s + j);
      for (int64_t r = 0; r < count; ++r) {
        to_logits(first + r, r0 + r, j, end, s + r * s_stride_);
        if (call_.stats == nullptr) {
          exponentials<false>(first + r, j, end, s + r * s_stride_, totals[r]);
        } else {
          exponentials<true>(first + r, j, end, s + r * s_stride_, totals[r]);
        }
      }
    }
    typename Rule::Row row[kBlockRows];
    for (int64_t r = 0; r < count; ++r) {
      const bool ignored = pairs_.ignores(first + r);
      if (!ignored) row[r] = row_from_totals(rule_, totals[r]);
      static_cast<T*>(call_.row_loss)[first + r] = row[r].loss;
      if (call_.stats == nullptr) continue;
      std::fill(row_stats(r0 + r), row_stats(r0 + r) + kStatCount, 0.0);
      if (!ignored) add_statistics(totals[r], row[r].loss > T{0}, 1.0 / static_cast<double>(scale(first + r)), row_stats(r0 + r));
    }
    for (int64_t r = 0; r < count && call_.d_temperature != nullptr; ++r) {
      temperature_slope_[first + r] = -slope(row[r], totals[r]) * weight(first + r) * static_cast<double>(scale(first + r));
    }
    if (!wants_rows_ && !wants_columns_) return;
    T* d = wants_rows_ ? d_chunk_.get() + r0 * stride_ : nullptr;
    for (int64_t j = 0; j < m_; j += Products::kWeightBlock) {
      const int64_t end = std::min(j + Products::kWeightBlock, m_);
      for (int64_t r = 0; r < count; ++r) weigh(first + r, r0 + r, row[r], j, end, s + r * s_stride_);
      if (wants_rows_) products_.d_rows(session, count, s + j, rows, j, end, d, j > 0);
    }
    for (int64_t r = 0; r < count && wants_rows_; ++r) {
      finish_row(first + r, rows + r * stride_, row_factor_[r0 + r], d + r * stride_);
    }
  }

  // Sums of z e^z, for the gradient of the temperature.
  enum { kPositiveSlope = kCounted, kNegativeSlope, kRowTotals };

  // The sum of dL/dz z over a row.
  static double slope(const typename Rule::Row& row, const double* totals) {
    return static_cast<double>(row.negative_factor) * totals[kNegativeSlope] +
           static_cast<double>(row.positive_factor) * totals[kPositiveSlope] -
           static_cast<double>(row.positive_offset) * totals[kPositiveSum];
  }

  // z to e^z in place, and into the totals of the row.
  template <bool counted>
  void exponentials(int64_t i, int64_t begin, int64_t end, T* s, double* totals) const {
    if (pairs_.ignores(i)) return;
    const bool slopes = call_.d_temperature != nullptr;
    vec<T> sums[kRowTotals];
    for (int kind = 0; kind < kRowTotals; ++kind) sums[kind] = splat(total_of_nothing<T>(kind));
    pairs_.visit(i, begin, end, [&](int64_t j, mask<T> positive, mask<T> negative) PAIRLOOM_LAMBDA_INLINE {
      const vec<T> z = load(s + j);
      const vec<T> e = exp(z);
      for_totals<counted>(z, e, positive, negative,
                          [&](int kind, vec<T> term) PAIRLOOM_LAMBDA_INLINE { sums[kind] = with_term(kind, sums[kind], term); });
      if (slopes) {
        sums[kNegativeSlope] += negative ? z * e : vec<T>{};
        sums[kPositiveSlope] += positive ? z * e : vec<T>{};
      }
      store<T>(s + j, e);
    });
    for (int kind = 0; kind < kRowTotals; ++kind) {
      if (counted || kind < kTotals || kind >= kCounted) add_to_total(kind, totals[kind], fold_lanes<T>(kind, sums[kind]));
    }
  }

  // e^z to W = dL/dz in place.
  void weigh(int64_t i, int64_t r, const typename Rule::Row& row, int64_t begin, int64_t end, T* s) const {
    const T w = static_cast<T>(weight(i));
    if (w == T{0}) {
      std::fill(s + begin, s + end, T{0});
      return;
    }
    const T negative_factor = row.negative_factor * w, positive_factor = row.positive_factor * w, positive_offset = row.positive_offset * w;
    pairs_.visit(i, begin, end, [&](int64_t j, mask<T> positive, mask<T> negative) PAIRLOOM_LAMBDA_INLINE {
      const vec<T> e = load(s + j);
      vec<T> v = negative ? e * negative_factor : vec<T>{};
      if (any(positive)) v = positive ? e * positive_factor - positive_offset : v;
      store<T>(s + j, to_weights(i, r, j, e, v));
    });
  }

  const Rule rule_;
};

}  // namespace pairloom::PAIRLOOM_ISA
