// The pair engine: value and gradients of any loss that is a rule about one row of S = rows columns^T, without the N x M matrix.
//
//   for each chunk of rows:
//     rows phase     (a thread owns rows):     S tile by tile, extremes while a tile is in cache; the rule's sums, the row loss;
//                                              W = dL/dS in place, d_rows = W columns
//     columns phase  (a thread owns columns):  d_columns += W^T rows
//
// S and W of one chunk are the only thing that grows with M, and hold a fixed number of rows. No thread writes what another one
// reads in the same phase, and chunk borders do not depend on the thread count: results are bit-equal for any number of threads.
#pragma once

#include <optional>

#include "engine/live_tiles.h"
#include "engine/pair_run.h"

namespace pairloom::PAIRLOOM_ISA {

template <class T, class Rule, class Products>
class PairLoss : PairRun<T, Products> {
  using Run = PairRun<T, Products>;
  using Run::call_, Run::pool_, Run::n_, Run::m_, Run::dim_, Run::stride_, Run::s_stride_, Run::chunk_rows_, Run::wants_rows_,
      Run::wants_columns_, Run::products_, Run::rows_, Run::row_factor_, Run::s_, Run::d_chunk_, Run::temperature_slope_, Run::pairs_,
      Run::gradient_scale_, Run::untouched_columns_, Run::in_units, Run::prepare_pairs, Run::pack_columns, Run::weight, Run::scale,
      Run::load_rows, Run::to_logits, Run::to_weights, Run::finish_row, Run::finish_columns, Run::begin_reduction, Run::end_reduction,
      Run::row_stats, Run::add_stats;

  static constexpr int64_t kBlockRows = Products::kBlockRows;

 public:
  PairLoss(const PairLossCall& call, const Rule& rule, const Parallel& pool) : Run(call, pool), rule_(rule) {
    if (rule_.mines() && (wants_rows_ || wants_columns_)) live_.emplace(chunk_rows_, m_, Products::kRowUnit);
  }

  void run() {
    prepare_pairs();
    pack_columns();
    begin_reduction();
    for (int64_t first = 0; first < n_; first += chunk_rows_) {
      const int64_t count = std::min(chunk_rows_, n_ - first);
      parallel_for(pool_, in_units(count) / Products::kRowUnit, [&](int64_t begin, int64_t end) {
        typename Products::Session session;
        const int64_t last = std::min(end * Products::kRowUnit, count);
        for (int64_t r = begin * Products::kRowUnit; r < last; r += kBlockRows)
          rows_phase(session, first, r, std::min(kBlockRows, last - r));
      });
      add_stats(count);
      add_live_tiles(count);
      if (wants_columns_) {
        constexpr int64_t kUnit = Products::kColumnUnit;
        parallel_for(pool_, (m_ + kUnit - 1) / kUnit, [&](int64_t begin, int64_t end) {
          typename Products::Session session;
          const int64_t last = std::min(end * kUnit, m_);
          add_columns(session, begin * kUnit, last, count, first > 0);
        });
      }
    }
    untouched_columns_ = n_ == 0 ? m_ : 0;
    finish_columns();
    end_reduction();
  }

 private:
  void rows_phase(typename Products::Session& session, int64_t chunk_first, int64_t r0, int64_t count) {
    const int64_t first = chunk_first + r0;
    T* rows = rows_.get() + r0 * stride_;
    T* s = s_.get() + r0 * s_stride_;
    load_rows(chunk_first, r0, count);

    LaneExtremes extremes[kBlockRows];
    for (int64_t r = 0; r < count; ++r) extremes[r] = LaneExtremes();
    for (int64_t j = 0; j < m_; j += Products::kColumnBlock) {
      const int64_t end = std::min(j + Products::kColumnBlock, m_);
      products_.similarities(r0, count, rows, j, end, s + j);
      for (int64_t r = 0; r < count; ++r) {
        to_logits(first + r, r0 + r, j, end, s + r * s_stride_);
        if constexpr (!Rule::kWholeRow) extremes[r].add(pairs_, first + r, j, end, s + r * s_stride_);
      }
    }

    typename Rule::Row row[kBlockRows];
    if constexpr (Rule::kWholeRow) {
      typename Rule::Scratch scratch(s_stride_);
      for (int64_t r = 0; r < count; ++r) whole_row(scratch, first + r, r0 + r, s + r * s_stride_);
    } else {
      for (int64_t r = 0; r < count; ++r) {
        row[r] = row_loss(first + r, extremes[r].fold(), s + r * s_stride_);
        if (call_.stats != nullptr) count_row(first + r, row[r], s + r * s_stride_, row_stats(r0 + r));
      }
    }

    if (!wants_rows_ && !wants_columns_ && call_.d_temperature == nullptr) return;
    double slope[kBlockRows] = {};
    T* d = wants_rows_ ? d_chunk_.get() + r0 * stride_ : nullptr;
    for (int64_t j = 0; j < m_; j += Products::kWeightBlock) {
      const int64_t end = std::min(j + Products::kWeightBlock, m_);
      if constexpr (!Rule::kWholeRow) {
        for (int64_t r = 0; r < count; ++r) slope[r] += weigh_row(first + r, r0 + r, row[r], j, end, s + r * s_stride_);
      }
      if (live_) live_->mark(r0, count, j, end, s, s_stride_);
      if (wants_rows_) add_rows(session, r0, count, s, j, end, d);
    }
    for (int64_t r = 0; r < count; ++r) {
      // z = s / t, so dL/dt = sum of dL/dz * -z / t.
      if (call_.d_temperature != nullptr) temperature_slope_[first + r] = -slope[r] * static_cast<double>(scale(first + r));
      if (wants_rows_) finish_row(first + r, rows + r * stride_, row_factor_[r0 + r], d + r * stride_);
    }
  }

  // d (+)= W columns of `count` rows from row r0 of the chunk on, over columns [j, end).
  void add_rows(typename Products::Session& session, int64_t r0, int64_t count, const T* s, int64_t j, int64_t end, T* d) {
    const T* rows = rows_.get() + r0 * stride_;
    if (!live_) return products_.d_rows(session, count, s + j, rows, j, end, d, j > 0);
    if (j == 0) std::fill(d, d + count * stride_, T{0});
    for (int64_t column = j; column < end; column += kLiveColumns) {
      const int64_t last = std::min(column + kLiveColumns, end);
      live_->row_runs(r0, r0 + count, column, last, [&](int64_t from, int64_t to) {
        const int64_t r = from - r0;
        products_.d_rows(session, to - from, s + r * s_stride_ + column, rows + r * stride_, column, last, d + r * stride_, true);
      });
    }
  }

  // The gradient of columns [begin, end) (+)= W^T rows of the chunk.
  void add_columns(typename Products::Session& session, int64_t begin, int64_t end, int64_t count, bool accumulate) {
    if (!live_) return products_.d_columns(session, begin, end, 0, count, rows_.get(), s_.get(), accumulate);
    if (!accumulate) products_.clear_d_columns(begin, end);
    // Steps that divide what a thread takes, so that runs are the same however the columns are shared out.
    constexpr int64_t kStep = Products::kColumnUnit % kLiveColumns == 0 ? kLiveColumns : Products::kColumnUnit;
    for (int64_t j = begin; j < end; j += kStep) {
      const int64_t last = std::min(j + kStep, end);
      live_->row_runs(0, count, j, last,
                      [&](int64_t from, int64_t to) { products_.d_columns(session, j, last, from, to, rows_.get(), s_.get(), true); });
    }
  }

  struct LaneExtremes {
    vec<T> min_positive = splat(Extremes<T>().min_positive);
    vec<T> max_positive = splat(Extremes<T>().max_positive);
    vec<T> max_negative = splat(Extremes<T>().max_negative);

    void add(const PairSet<T>& pairs, int64_t row, int64_t begin, int64_t end, const T* s) {
      if (pairs.ignores(row)) return;
      const Extremes<T> none;
      vec<T> low = min_positive, high = max_positive, negative_high = max_negative;
      pairs.visit(row, begin, end, [&](int64_t j, mask<T> positive, mask<T> negative) PAIRLOOM_LAMBDA_INLINE {
        const vec<T> v = load(s + j);
        if constexpr (Rule::kUsesPositiveExtremes) {
          low = smaller(low, positive ? v : splat(none.min_positive));
          high = larger(high, positive ? v : splat(none.max_positive));
        }
        negative_high = larger(negative_high, negative ? v : splat(none.max_negative));
      });
      min_positive = low;
      max_positive = high;
      max_negative = negative_high;
    }
    Extremes<T> fold() const { return {min_lanes<T>(min_positive), max_lanes<T>(max_positive), max_lanes<T>(max_negative)}; }
  };

  typename Rule::Row row_loss(int64_t i, const Extremes<T>& extremes, const T* s) const {
    typename Rule::Row row = rule_.begin(extremes);
    double totals[Rule::kSums] = {};
    for (int64_t j0 = 0; j0 < m_ && !pairs_.ignores(i); j0 += kSumBlock) {
      vec<T> lane_sums[Rule::kSums] = {};
      pairs_.visit(i, j0, std::min(j0 + kSumBlock, m_), [&](int64_t j, mask<T> positive, mask<T> negative) PAIRLOOM_LAMBDA_INLINE {
        rule_.add(lane_sums, load(s + j), positive, negative, row);
      });
      for (int k = 0; k < Rule::kSums; ++k) totals[k] += static_cast<double>(sum_lanes<T>(lane_sums[k]));
    }
    T sums[Rule::kSums];
    for (int k = 0; k < Rule::kSums; ++k) sums[k] = static_cast<T>(totals[k]);
    rule_.end_sums(row, sums);
    T positive_sums[Rule::kPositiveSums + 1] = {};  // one more: there may be none
    if (Rule::kPositiveSums > 0 && !pairs_.ignores(i)) {
      visit_positives(i, s, [&](T value) { rule_.add_positive(positive_sums, value, row); });
    }
    rule_.end(row, positive_sums);
    static_cast<T*>(call_.row_loss)[i] = pairs_.ignores(i) ? T{0} : row.loss;
    return row;
  }

  // Everything about row i, row r of the chunk, for a rule that takes it at once; S to W in place.
  template <class Scratch>
  void whole_row(Scratch& scratch, int64_t i, int64_t r, T* s) {
    const int64_t width = vector_width<T>(m_);
    const bool ignored = pairs_.ignores(i);
    typename Rule::Row row;
    if (!ignored) row = rule_.row(s, width, [&](auto&& body) { pairs_.visit(i, 0, m_, body); }, scratch);
    if (call_.stats != nullptr) count_row(i, row, s, row_stats(r));
    static_cast<T*>(call_.row_loss)[i] = row.loss;
    call_.row_active[i] = row.active;
    call_.row_terms[i] = row.terms;
    if (!wants_rows_ && !wants_columns_) return;
    const T w = static_cast<T>(weight(i));
    if (ignored || w == T{0}) return std::fill(s, s + width, T{0});
    for (int64_t j = 0; j < width; j += kLanes<T>) {
      store<T>(s + j, to_weights(i, r, j, load(s + j), load(scratch.slope.get() + j) * w));
    }
  }

  template <class F>
  void visit_positives(int64_t i, const T* s, F&& f) const {
    const auto one_vector = [&](int64_t j, mask<T> positive, mask<T>) {
      if (!any(positive)) return;
      for (int lane = 0; lane < kLanes<T>; ++lane) {
        if (positive[lane] != 0) f(s[j + lane]);
      }
    };
    if (!pairs_.same_class_is_positive) {  // only the row's own column can be one
      const int64_t j = i / kLanes<T> * kLanes<T>;
      if (pairs_.has_own_column && i < m_) pairs_.visit(i, j, std::min(j + kLanes<T>, m_), one_vector);
    } else {
      pairs_.visit(i, 0, m_, one_vector);
    }
  }

  // S to W = dL/dS in place. Returns the sum of dL/dz * z where the temperature needs it.
  T weigh_row(int64_t i, int64_t r, const typename Rule::Row& row, int64_t begin, int64_t end, T* s) const {
    const T w = static_cast<T>(weight(i));
    if (w == T{0}) {
      std::fill(s + begin, s + vector_width<T>(end), T{0});  // whole vectors, as elsewhere: what stands beyond M is looked at too
      return T{0};
    }
    if (call_.d_temperature == nullptr) {
      pairs_.visit(i, begin, end, [&](int64_t j, mask<T> positive, mask<T> negative) PAIRLOOM_LAMBDA_INLINE {
        const vec<T> z = load(s + j);
        store<T>(s + j, to_weights(i, r, j, z, rule_.weigh(z, positive, negative, row) * w));
      });
      return T{0};
    }
    const T origin = rule_.origin(row);
    vec<T> slope{};
    pairs_.visit(i, begin, end, [&](int64_t j, mask<T> positive, mask<T> negative) PAIRLOOM_LAMBDA_INLINE {
      const vec<T> z = load(s + j);
      const vec<T> weighed = rule_.weigh(z, positive, negative, row) * w;
      slope += (positive | negative) ? weighed * (z - origin) : vec<T>{};
      store<T>(s + j, to_weights(i, r, j, z, weighed));
    });
    return sum_lanes<T>(slope);
  }

  void count_row(int64_t i, const typename Rule::Row& row, const T* s, double* out) const {
    std::fill(out, out + kStatCount, 0.0);
    if (pairs_.ignores(i)) return;
    double positive_sum = 0, negative_sum = 0;
    vec<T> best_positive = splat(Extremes<T>().max_positive), best_negative = splat(Extremes<T>().max_negative);
    int64_t counts[4] = {};
    pairs_.visit(i, 0, m_, [&](int64_t j, mask<T> positive, mask<T> negative) {
      const vec<T> v = load(s + j);
      positive_sum += static_cast<double>(sum_lanes<T>(positive ? v : vec<T>{}));
      negative_sum += static_cast<double>(sum_lanes<T>(negative ? v : vec<T>{}));
      counts[0] += count_lanes<T>(positive);
      counts[1] += count_lanes<T>(negative);
      counts[2] += count_lanes<T>(positive & rule_.mined_positive(v, row));
      counts[3] += count_lanes<T>(negative & rule_.mined_negative(v, row));
      best_positive = larger(best_positive, positive ? v : best_positive);
      best_negative = larger(best_negative, negative ? v : best_negative);
    });
    const double temperature = 1.0 / static_cast<double>(scale(i));
    out[kAnchors] = 1;
    for (int k = 0; k < 4; ++k) out[kPositives + k] = static_cast<double>(counts[k]);
    out[kAnchorsWithoutPositive] = counts[0] == 0;
    out[kAnchorsWithoutNegative] = counts[1] == 0;
    out[kTop1Hits] = max_lanes<T>(best_positive) > max_lanes<T>(best_negative);
    out[kPositiveSimilaritySum] = positive_sum * temperature;
    out[kNegativeSimilaritySum] = negative_sum * temperature;
    out[kActiveAnchors] = row.loss > T{0};
  }

  void add_live_tiles(int64_t count) {
    if (call_.stats == nullptr || !live_) return;
    call_.stats[kTiles] += static_cast<double>(live_->tiles(count));
    call_.stats[kLiveTiles] += static_cast<double>(live_->live(count));
  }

  const Rule rule_;
  std::optional<LiveTiles> live_;  // where the rule mines
};

}  // namespace pairloom::PAIRLOOM_ISA
