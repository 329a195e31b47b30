// The shorter way through the pairs, for a loss in which a pair counts for its row and for its column alike: one batch against itself,
// where S is symmetric (4 N N D flops for value and gradient instead of 6), or two batches, each against the other (8 N M D instead
// of 12). It needs sums over a row that do not wait for the largest of the row: for bounded z, e^z itself can be summed.
//
//   first pass    for each chunk of rows: S tile by tile, e^z once for both roles of a pair; sums of rows, and sums of columns
//                 over strips of rows, which the owner of a column adds up after the chunk
//   then          each row's (column's) loss and its weights' factors from its sums
//   second pass   S again, V = the weights of both roles at once; d_rows = V columns, d_columns += V^T rows
//
// One batch against itself: only columns from the row's square (kChunkRows rows on the diagonal) on are visited, in both passes. In
// the square both orders of a pair are there, and d_rows takes both; beyond it each pair is there once, and counts for both its rows.
// Which columns a row visits and where strips end depends on its number alone: results are bit-equal for any number of threads.
#pragma once

#include "engine/bounded.h"
#include "engine/pair_run.h"

namespace pairloom::PAIRLOOM_ISA {

template <class T, class Rule, class Products>
class PairSweep : PairRun<T, Products> {
  using Run = PairRun<T, Products>;
  using Run::call_, Run::pool_, Run::n_, Run::m_, Run::dim_, Run::stride_, Run::s_stride_, Run::chunk_rows_, Run::wants_rows_,
      Run::wants_columns_, Run::products_, Run::rows_, Run::row_factor_, Run::s_, Run::d_chunk_, Run::temperature_slope_, Run::pairs_,
      Run::gradient_scale_, Run::untouched_columns_, Run::prepare_pairs, Run::pack_columns, Run::weight, Run::scale, Run::load_rows,
      Run::to_logits, Run::to_weights, Run::finish_row, Run::finish_columns, Run::reduce_temperature;

  static constexpr int64_t kBlockRows = Products::kBlockRows;
  static constexpr int64_t kSquare = Products::kChunkRows;
  static constexpr int64_t kStrip = Products::kStripRows;
  static_assert(kSquare % kStrip == 0 && kSquare % Products::kColumnPack == 0);

 public:
  // One batch against itself; or two of N rows, where the loss of i is the mean of those of row i and of column i.
  PairSweep(const PairLossCall& call, const Rule& rule, const Parallel& pool)
      : Run(call, pool),
        rule_(rule),
        column_loss_(call.self ? 0 : m_),
        kinds_(call.stats != nullptr ? kCounted : kTotals),
        strip_totals_(kinds_ * strips(chunk_rows_) * s_stride_),
        row_totals_(n_ * kinds_),
        column_totals_(call.self ? 0 : m_ * kinds_),
        row_weights_(kFactors * padded_stride<T>(n_)),
        column_weights_(call.self ? 0 : kFactors * padded_stride<T>(m_)) {}

  static bool fits(const PairLossCall& call, const Parallel& pool) { return !call.temperature_per_row && bounded_logits<T>(call, pool); }

  void run() {
    prepare_pairs();
    pack_columns();
    clear_totals(row_totals_.get(), n_);
    if (!call_.self) clear_totals(column_totals_.get(), m_);
    for_chunks([&](int64_t first, int64_t count) {
      for_blocks(first, count, [&](typename Products::Session&, int64_t r0, int64_t rows) { sum_block(first, r0, rows); });
      for_columns(first, [&](typename Products::Session&, int64_t begin, int64_t end) { sum_strips(first, count, begin, end); });
    });
    T* loss = static_cast<T*>(call_.row_loss);
    end_rows(row_totals_.get(), n_, loss, row_weights_.get());
    if (!call_.self) {
      end_rows(column_totals_.get(), m_, column_loss_.get(), column_weights_.get());
      for (int64_t i = 0; i < n_; ++i) loss[i] = (loss[i] + column_loss_[i]) / 2;
    }
    const double inverse = reduce_losses<T>(call_);
    if (wants_rows_ || wants_columns_ || call_.d_temperature != nullptr) make_gradients(call_.self ? inverse : inverse / 2);
  }

 private:
  // Of the weights of a row or column.
  enum { kPositiveFactor, kNegativeFactor, kPositiveOffset, kFactors };

  static int64_t strips(int64_t rows) { return (rows + kStrip - 1) / kStrip; }

  template <class F>
  void for_chunks(F&& f) {
    for (int64_t first = 0; first < n_; first += chunk_rows_) f(first, std::min(chunk_rows_, n_ - first));
  }
  // Blocks of whole strips that do not cross the border of a square.
  template <class F>
  void for_blocks(int64_t first, int64_t count, F&& f) {
    parallel_for(pool_, strips(count), [&](int64_t begin, int64_t end) {
      typename Products::Session session;
      const int64_t last = std::min(end * kStrip, count);
      for (int64_t r = begin * kStrip; r < last;) {
        const int64_t rows = std::min({kBlockRows, last - r, square_end(first + r) - (first + r)});
        f(session, r, rows);
        r += rows;
      }
    });
  }
  // The columns that get something from a chunk, whole units of them: all, or those beyond its first square.
  template <class F>
  void for_columns(int64_t chunk_first, F&& f) {
    constexpr int64_t kUnit = Products::kColumnUnit;
    static_assert(kSquare % kUnit == 0);
    const int64_t from = call_.self ? std::min(square_end(chunk_first), m_) : 0;
    parallel_for(pool_, (m_ - from + kUnit - 1) / kUnit, [&](int64_t begin, int64_t end) {
      typename Products::Session session;
      f(session, from + begin * kUnit, std::min(from + end * kUnit, m_));
    });
  }

  static int64_t square_begin(int64_t row) { return row / kSquare * kSquare; }
  static int64_t square_end(int64_t row) { return square_begin(row) + kSquare; }
  int64_t first_column(int64_t row) const { return call_.self ? square_begin(row) : 0; }

  T* strip_totals(int64_t strip, int kind) const { return strip_totals_.get() + (strip * kinds_ + kind) * s_stride_; }

  void clear_totals(double* totals, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      for (int kind = 0; kind < kinds_; ++kind) totals[i * kinds_ + kind] = total_of_nothing<double>(kind);
    }
  }

  void sum_block(int64_t chunk_first, int64_t r0, int64_t count) {
    const int64_t first = chunk_first + r0;
    T* rows = rows_.get() + r0 * stride_;
    T* s = s_.get() + r0 * s_stride_;  // one tile after the other in the same place, which stays in the cache
    load_rows(chunk_first, r0, count);
    const int64_t from = first_column(first);
    for (int64_t strip = r0 / kStrip; strip < strips(r0 + count); ++strip) {
      for (int kind = 0; kind < kinds_; ++kind)
        std::fill(strip_totals(strip, kind) + from, strip_totals(strip, kind) + vector_width<T>(m_), total_of_nothing<T>(kind));
    }
    for (int64_t j = from; j < m_; j += Products::kColumnBlock) {
      const int64_t end = std::min(j + Products::kColumnBlock, m_);
      products_.similarities(r0, count, rows, j, end, s);
      for (int64_t r = 0; r < count; ++r) {
        T* row = s + r * s_stride_ - j;
        to_logits(first + r, r0 + r, j, end, row);
        if (call_.stats == nullptr) {
          sum_row<false>(first + r, (r0 + r) / kStrip, j, end, row);
        } else {
          sum_row<true>(first + r, (r0 + r) / kStrip, j, end, row);
        }
      }
    }
  }

  template <bool counted>
  void sum_row(int64_t i, int64_t strip, int64_t begin, int64_t end, const T* s) {
    if (pairs_.ignores(i)) return;
    constexpr int kKinds = counted ? kCounted : kTotals;
    vec<T> totals[kKinds];
    T* columns[kKinds];
    for (int kind = 0; kind < kKinds; ++kind) {
      totals[kind] = splat(total_of_nothing<T>(kind));
      columns[kind] = strip_totals(strip, kind);
    }
    pairs_.visit(i, begin, end, [&](int64_t j, mask<T> positive, mask<T> negative) PAIRLOOM_LAMBDA_INLINE {
      const vec<T> z = load(s + j);
      for_totals<counted>(z, exp(z), positive, negative, [&](int kind, vec<T> term) PAIRLOOM_LAMBDA_INLINE {
        totals[kind] = with_term(kind, totals[kind], term);
        store<T>(columns[kind] + j, with_term(kind, load(columns[kind] + j), term));
      });
    });
    for (int kind = 0; kind < kKinds; ++kind) add_to_total(kind, row_totals_[i * kinds_ + kind], fold_lanes<T>(kind, totals[kind]));
  }

  // Into the totals of columns [begin, end) what the strips of a chunk have for them.
  void sum_strips(int64_t chunk_first, int64_t count, int64_t begin, int64_t end) {
    double* totals = call_.self ? row_totals_.get() : column_totals_.get();
    for (int64_t strip = 0; strip < strips(count); ++strip) {
      const int64_t from = call_.self ? std::max(begin, square_end(chunk_first + strip * kStrip)) : begin;
      for (int kind = 0; kind < kinds_; ++kind) {
        const T* parts = strip_totals(strip, kind);
        for (int64_t j = from; j < end; ++j) add_to_total(kind, totals[j * kinds_ + kind], static_cast<double>(parts[j]));
      }
    }
  }

  // Losses, factors of the weights and statistics, from the totals.
  void end_rows(const double* totals, int64_t count, T* loss, T* weights) const {
    const int64_t stride = padded_stride<T>(count);
    std::fill(weights, weights + kFactors * stride, T{0});
    for (int64_t i = 0; i < count; ++i) {
      loss[i] = T{0};
      if (pairs_.ignores(i)) continue;
      const T w = static_cast<T>(weight(i));
      const typename Rule::Row row = row_from_totals(rule_, totals + i * kinds_);
      loss[i] = row.loss;
      if (call_.stats != nullptr) {
        add_statistics(totals + i * kinds_, row.loss > T{0}, 1.0 / static_cast<double>(scale(i)), call_.stats);
      }
      weights[kPositiveFactor * stride + i] = row.positive_factor * w;
      weights[kNegativeFactor * stride + i] = row.negative_factor * w;
      weights[kPositiveOffset * stride + i] = row.positive_offset * w;
    }
  }

  void make_gradients(double scale_of_all) {
    gradient_scale_ = static_cast<T>(scale_of_all);
    for_chunks([&](int64_t first, int64_t count) {
      for_blocks(first, count,
                 [&](typename Products::Session& session, int64_t r0, int64_t rows) { weigh_block(session, first, r0, rows); });
      if (!wants_columns_) return;
      for_columns(first, [&](typename Products::Session& session, int64_t begin, int64_t end) {
        for (int64_t j = begin; j < end;) {
          // One batch: the rows before the column's square.
          const int64_t stop = call_.self ? std::min(end, square_end(j)) : end;
          const int64_t depth = call_.self ? std::clamp<int64_t>(square_begin(j) - first, 0, count) : count;
          if (depth > 0) products_.d_columns(session, j, stop, 0, depth, rows_.get(), s_.get(), first > 0);
          j = stop;
        }
      });
    });
    untouched_columns_ = n_ == 0 ? m_ : call_.self ? std::min(kSquare, m_) : 0;
    finish_columns();
    reduce_temperature(scale_of_all);
  }

  void weigh_block(typename Products::Session& session, int64_t chunk_first, int64_t r0, int64_t count) {
    const int64_t first = chunk_first + r0;
    T* rows = rows_.get() + r0 * stride_;
    T* s = s_.get() + r0 * s_stride_;
    load_rows(chunk_first, r0, count);
    double slope[kBlockRows] = {};
    T* d = wants_rows_ ? d_chunk_.get() + r0 * stride_ : nullptr;
    const int64_t from = first_column(first);
    for (int64_t j0 = from; j0 < m_; j0 += Products::kColumnBlock) {
      const int64_t block_end = std::min(j0 + Products::kColumnBlock, m_);
      products_.similarities(r0, count, rows, j0, block_end, s + j0);
      for (int64_t r = 0; r < count; ++r) to_logits(first + r, r0 + r, j0, block_end, s + r * s_stride_);
      for (int64_t j = j0; j < block_end; j += Products::kWeightBlock) {
        const int64_t end = std::min(j + Products::kWeightBlock, block_end);
        for (int64_t r = 0; r < count; ++r) slope[r] += weigh_row(first + r, r0 + r, j, end, s + r * s_stride_);
        if (wants_rows_) products_.d_rows(session, count, s + j, rows, j, end, d, j > from);
      }
    }
    for (int64_t r = 0; r < count; ++r) {
      if (call_.d_temperature != nullptr) temperature_slope_[first + r] = -slope[r] * static_cast<double>(scale(first + r));
      if (wants_rows_) finish_row(first + r, rows + r * stride_, row_factor_[r0 + r], d + r * stride_);
    }
  }

  // S to V in place: dL/dz of the pair in both its roles. Returns the sum of V z where the temperature needs it.
  double weigh_row(int64_t i, int64_t r, int64_t begin, int64_t end, T* s) const {
    if (pairs_.ignores(i)) {
      std::fill(s + begin, s + end, T{0});
      return 0;
    }
    if (call_.d_temperature == nullptr) {
      weigh_pairs(i, r, begin, end, s, [](int64_t, vec<T>, vec<T>) PAIRLOOM_LAMBDA_INLINE {});
      return 0;
    }
    vec<T> slope{}, in_square{};  // in the square both orders of a pair are there, each with the weights of both
    const int64_t split = call_.self ? square_end(i) : 0;
    weigh_pairs(i, r, begin, end, s, [&](int64_t j, vec<T> z, vec<T> v) PAIRLOOM_LAMBDA_INLINE {
      const mask<T> later = lane_numbers<T>() + static_cast<lane_int<T>>(j) >= static_cast<lane_int<T>>(split);
      slope += later ? v * z : vec<T>{};
      in_square += later ? vec<T>{} : v * z;
    });
    return static_cast<double>(sum_lanes<T>(slope)) + static_cast<double>(sum_lanes<T>(in_square)) / 2;
  }

  template <class F>
  PAIRLOOM_INLINE void weigh_pairs(int64_t i, int64_t r, int64_t begin, int64_t end, T* s, F&& also) const {
    const int64_t stride = padded_stride<T>(n_), column_stride = call_.self ? stride : padded_stride<T>(m_);
    const T* own = row_weights_.get() + i;
    const T* columns = call_.self ? row_weights_.get() : column_weights_.get();
    const T positive_factor = own[kPositiveFactor * stride], negative_factor = own[kNegativeFactor * stride],
            positive_offset = own[kPositiveOffset * stride];
    pairs_.visit(i, begin, end, [&](int64_t j, mask<T> positive, mask<T> negative) PAIRLOOM_LAMBDA_INLINE {
      const vec<T> z = load(s + j);
      const vec<T> e = exp(z);
      vec<T> v = negative ? e * (load(columns + kNegativeFactor * column_stride + j) + negative_factor) : vec<T>{};
      if (any(positive)) {
        const vec<T> factor = load(columns + kPositiveFactor * column_stride + j) + positive_factor;
        const vec<T> offset = load(columns + kPositiveOffset * column_stride + j) + positive_offset;
        v = positive ? e * factor - offset : v;
      }
      also(j, z, v);
      store<T>(s + j, to_weights(i, r, j, z, v));
    });
  }

  const Rule rule_;
  Buffer<T> column_loss_;
  const int kinds_;  // of totals: more for statistics
  Buffer<T> strip_totals_;
  Buffer<double> row_totals_;
  Buffer<double> column_totals_;
  Buffer<T> row_weights_;  // kFactors arrays, one value for each row
  Buffer<T> column_weights_;
};

}  // namespace pairloom::PAIRLOOM_ISA
