// The pair engine: value and gradients of any loss that is a rule about one row of S = rows columns^T, without the N x M matrix.
//
//   for each chunk of rows:
//     rows phase     (a thread owns rows):     S tile by tile, extremes while a tile is in cache; the rule's sums, the row loss;
//                                              W = dL/dS in place, d_rows = W columns
//     columns phase  (a thread owns columns):  d_columns += W^T rows
//
// S and W of one chunk are the only thing that grows with M, and hold a fixed number of rows. No thread writes what another one
// reads in the same phase, and chunk borders do not depend on the thread count: results are bit-equal for any number of threads.
// The temperature is folded into the rows (z = (x / temperature) . y), the norms of cosine into rows and columns.
#pragma once

#include <limits>

#include "core/buffer.h"
#include "core/parallel.h"
#include "engine/gemm.h"
#include "engine/pairs.h"
#include "engine/rows.h"
#include "engine/rule.h"

namespace pairloom::PAIRLOOM_ISA {

// The depth of d_columns += W^T rows, and the least rows of a chunk.
constexpr int64_t kChunkRows = 2 * kBlockRows;
// Columns per pass over a tile of S while it is in the second-level cache.
constexpr int64_t kColumnBlock = 512;
// Columns per depth step of d_rows += W columns.
constexpr int64_t kWeightBlock = 128;
// Columns of d_columns that a thread takes at least, and that it works on together: whole tiles, and whole vectors of W.
constexpr int64_t kColumnUnit = 48;
constexpr int64_t kColumnsTogether = 4 * kColumnUnit;

// dL/dx from g = dL/dy for y = factor * scale * x (cosine: factor = 1/|x| and y on the sphere of radius scale), in place.
template <class T>
void chain_rule(const T* y, T factor, T scale, bool normalized, int64_t dim, T* g) {
  if (!normalized) {
    for (int64_t k = 0; k < dim; ++k) g[k] *= scale;
    return;
  }
  // `y` and `g` are padded with zeros to whole vectors.
  vec<T> products{};
  for (int64_t k = 0; k < dim; k += kLanes<T>) products += load(y + k) * load(g + k);
  T along = sum_lanes<T>(products);
  along /= scale;
  for (int64_t k = 0; k < dim; ++k) g[k] = factor * (scale * g[k] - along * y[k]);
}

template <class T, class Rule>
class PairLoss {
 public:
  PairLoss(const PairLossCall& call, const Rule& rule, const Parallel& pool)
      : call_(call),
        rule_(rule),
        pool_(pool),
        n_(call.rows.rows),
        m_(call.self ? call.rows.rows : call.columns.rows),
        dim_(call.rows.dim),
        normalize_(call.similarity == Similarity::cosine),
        width_(vector_width<T>(dim_)),
        stride_(padded_stride<T>(dim_)),
        s_stride_(padded_stride<T>(m_)),
        chunk_rows_(rows_per_chunk()),
        wants_rows_(call.d_rows != nullptr),
        wants_columns_(call.d_columns != nullptr || (call.self && call.d_rows != nullptr)),
        panels_(panel_count<T>(m_) * kPanel<T> * dim_),
        columns_(wants_rows_ ? m_ * panel_width<T>(dim_) : 0),
        column_factor_(wants_columns_ ? m_ : 0),
        rows_(chunk_rows_ * stride_),
        row_factor_(chunk_rows_),
        s_(chunk_rows_ * s_stride_),
        d_chunk_(wants_rows_ ? chunk_rows_ * stride_ : 0),
        d_columns_(wants_columns_ ? m_ * panel_width<T>(dim_) : 0),
        row_class_(n_),
        column_class_(call.row_labels != nullptr ? vector_width<T>(m_) : 0),
        temperature_slope_(call.d_temperature != nullptr ? n_ : 0),
        row_stats_(call.stats != nullptr ? chunk_rows_ * kStatCount : 0) {}

  void run() {
    prepare_pairs();
    pack_columns();
    const double denominator = known_denominator();
    gradient_scale_ = denominator > 0 ? static_cast<T>(1.0 / denominator) : T{1};
    if (call_.stats != nullptr) std::fill(call_.stats, call_.stats + kStatCount, 0.0);
    for (int64_t first = 0; first < n_; first += chunk_rows_) {
      const int64_t count = std::min(chunk_rows_, n_ - first);
      parallel_for(pool_, (count + kTileRows - 1) / kTileRows, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin * kTileRows; r < std::min(end * kTileRows, count); r += kBlockRows) {
          rows_phase(first, r, std::min(kBlockRows, std::min(end * kTileRows, count) - r));
        }
      });
      add_stats(count);
      if (wants_columns_) {
        parallel_for(pool_, (m_ + kColumnUnit - 1) / kColumnUnit, [&](int64_t begin, int64_t end) {
          columns_phase(begin * kColumnUnit, std::min(end * kColumnUnit, m_), count, first > 0 || call_.self);
        });
      }
    }
    finish_columns();
    reduce();
  }

 private:
  int64_t rows_per_chunk() const {
    // About 8 MiB of S, which the caches of today hold; never fewer than one chunk of full tiles, which feeds d_columns.
    const int64_t fitting = (int64_t{8} << 20) / (s_stride_ * static_cast<int64_t>(sizeof(T)));
    const int64_t rows = std::clamp(fitting / kChunkRows * kChunkRows, kChunkRows, 8 * kChunkRows);
    return std::min(rows, std::max<int64_t>(n_, 1));
  }

  const Matrix& column_matrix() const { return call_.self ? call_.rows : call_.columns; }

  void prepare_pairs() {
    Buffer<int32_t> column_class(m_);
    classify_labels(call_, n_, m_, row_class_.get(), column_class.get());
    const bool labelled = call_.row_labels != nullptr;
    if (labelled) {
      for (int64_t j = 0; j < m_; ++j) column_class_[j] = column_class[j];
      for (int64_t j = m_; j < vector_width<T>(m_); ++j) column_class_[j] = kNoPair;
    }
    pairs_ = PairSet<T>{.column_class = labelled ? column_class_.get() : nullptr,
                        .row_class = row_class_.get(),
                        .same_class_is_positive = call_.same_label_is_positive,
                        .own_column_is_positive = call_.target_is_row,
                        .has_own_column = call_.target_is_row || call_.self,
                        .columns = m_};
  }

  void pack_columns() {
    parallel_for(pool_, panel_count<T>(m_), [&](int64_t begin, int64_t end) {
      Buffer<T> rows(kPanel<T> * stride_);
      for (int64_t p = begin; p < end; ++p) {
        const int64_t first = p * kPanel<T>;
        const int64_t count = std::min(kPanel<T>, m_ - first);
        for (int64_t j = 0; j < count; ++j) {
          T* row = rows.get() + j * stride_;
          const T factor = load_row(column_matrix(), first + j, normalize_, row, stride_);
          if (wants_columns_) column_factor_[first + j] = factor;
          if (!wants_rows_) continue;
          for (int64_t k = 0; k < width_; k += kPanel<T>) {
            std::copy(row + k, row + k + kPanel<T>, columns_.get() + k * m_ + (first + j) * kPanel<T>);
          }
        }
        pack_panel(rows.get(), stride_, count, dim_, panels_.get() + first * dim_);
        if (!call_.self || !wants_columns_) continue;
        for (int64_t k = 0; k < width_; k += kPanel<T>) {  // both phases add to it, so it starts at zero
          std::fill(d_columns(first, k), d_columns(first + count, k), T{0});
        }
      }
    });
  }

  // The columns by depth step of d_rows = W columns: slices of kPanel components, each a stream through all columns.
  Slices<T> column_slices(int64_t first) const { return {columns_.get() + first * kPanel<T>, m_ * kPanel<T>, kPanel<T>}; }

  // Column j as it was compared, from its slices where there are some.
  void read_column(int64_t j, T* out) const {
    if (!wants_rows_) {
      load_row(column_matrix(), j, normalize_, out, stride_);
      return;
    }
    for (int64_t k = 0; k < width_; k += kPanel<T>) {
      const T* slice = column_slices(j).data + k * m_;
      std::copy(slice, slice + kPanel<T>, out + k);
    }
  }

  // Components [k, k + kPanel) of the gradient of column j.
  T* d_columns(int64_t j, int64_t k) const { return d_columns_.get() + k * m_ + j * kPanel<T>; }

  double weight(int64_t row) const { return pairs_.ignores(row) ? 0.0 : call_.weights != nullptr ? call_.weights[row] : 1.0; }

  T scale(int64_t row) const {
    if (call_.temperature == nullptr) return T{1};
    return static_cast<T>(1.0 / call_.temperature[call_.temperature_per_row ? row : 0]);
  }

  // The divisor of the mean where it does not depend on the losses; 1 for a sum, 0 when it is not known yet or there is nothing.
  double known_denominator() const {
    if (call_.reduction == Reduction::mean_nonzero) return 0.0;
    if (call_.reduction != Reduction::mean) return 1.0;
    double total = 0;
    for (int64_t i = 0; i < n_; ++i) total += weight(i);
    return total;
  }

  void rows_phase(int64_t chunk_first, int64_t r0, int64_t count) {
    const int64_t first = chunk_first + r0;
    T* rows = rows_.get() + r0 * stride_;
    T* s = s_.get() + r0 * s_stride_;
    for (int64_t r = 0; r < count; ++r) {
      row_factor_[r0 + r] = load_row(call_.rows, first + r, normalize_, rows + r * stride_, stride_);
      const T factor = scale(first + r);
      if (factor != T{1}) {
        for (int64_t k = 0; k < dim_; ++k) rows[r * stride_ + k] *= factor;
      }
    }

    LaneExtremes extremes[kBlockRows];
    for (int64_t r = 0; r < count; ++r) extremes[r] = LaneExtremes();
    for (int64_t j = 0; j < m_; j += kColumnBlock) {
      const int64_t end = std::min(j + kColumnBlock, m_);
      gemm_packed<Dot>(rows, stride_, panels_.get() + j * dim_, dim_, panel_count<T>(end - j), s + j, s_stride_, count);
      for (int64_t r = 0; r < count; ++r) extremes[r].add(pairs_, first + r, j, end, s + r * s_stride_);
    }

    typename Rule::Row row[kBlockRows];
    for (int64_t r = 0; r < count; ++r) {
      row[r] = row_loss(first + r, extremes[r].fold(), s + r * s_stride_);
      if (call_.stats != nullptr) count_row(first + r, row[r], s + r * s_stride_, row_stats_.get() + (r0 + r) * kStatCount);
    }

    if (!wants_rows_ && !wants_columns_ && call_.d_temperature == nullptr) return;
    T slope[kBlockRows] = {};
    T* d = wants_rows_ ? d_chunk_.get() + r0 * stride_ : nullptr;
    for (int64_t j = 0; j < m_; j += kWeightBlock) {
      const int64_t end = std::min(j + kWeightBlock, m_);
      for (int64_t r = 0; r < count; ++r) slope[r] += weigh_row(first + r, row[r], j, end, s + r * s_stride_);
      if (wants_rows_) {
        gemm_sliced<Order::rows>(s + j, s_stride_, column_slices(j), d, stride_, count, end - j, width_, j > 0);
      }
    }
    for (int64_t r = 0; r < count; ++r) {
      // z = s / t, so dL/dt = sum of dL/dz * -z / t.
      if (call_.d_temperature != nullptr) temperature_slope_[first + r] = -static_cast<double>(slope[r]) * scale(first + r);
      if (wants_rows_) finish_row(first + r, rows + r * stride_, row_factor_[r0 + r], d + r * stride_);
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
    vec<T> lane_sums[Rule::kSums] = {};
    if (!pairs_.ignores(i)) {
      pairs_.visit(i, 0, m_, [&](int64_t j, mask<T> positive, mask<T> negative) PAIRLOOM_LAMBDA_INLINE {
        rule_.add(lane_sums, load(s + j), positive, negative, row);
      });
    }
    T sums[Rule::kSums];
    for (int k = 0; k < Rule::kSums; ++k) sums[k] = sum_lanes<T>(lane_sums[k]);
    rule_.end_sums(row, sums);
    if (Rule::kVisitsPositives && !pairs_.ignores(i)) visit_positives(i, s, [&](T value) { rule_.add_positive(row, value); });
    rule_.end(row);
    static_cast<T*>(call_.row_loss)[i] = pairs_.ignores(i) ? T{0} : row.loss;
    return row;
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
  T weigh_row(int64_t i, const typename Rule::Row& row, int64_t begin, int64_t end, T* s) const {
    const T w = static_cast<T>(weight(i));
    if (w == T{0}) {
      std::fill(s + begin, s + end, T{0});
      return T{0};
    }
    if (call_.d_temperature == nullptr) {
      pairs_.visit(i, begin, end, [&](int64_t j, mask<T> positive, mask<T> negative) PAIRLOOM_LAMBDA_INLINE {
        store<T>(s + j, rule_.weigh(load(s + j), positive, negative, row) * w);
      });
      return T{0};
    }
    const T origin = rule_.origin(row);
    vec<T> slope{};
    pairs_.visit(i, begin, end, [&](int64_t j, mask<T> positive, mask<T> negative) PAIRLOOM_LAMBDA_INLINE {
      const vec<T> z = load(s + j);
      const vec<T> weighed = rule_.weigh(z, positive, negative, row) * w;
      slope += (positive | negative) ? weighed * (z - origin) : vec<T>{};
      store<T>(s + j, weighed);
    });
    return sum_lanes<T>(slope);
  }

  void finish_row(int64_t i, const T* y, T factor, T* g) {
    const T radius = scale(i);
    if (m_ == 0) std::fill(g, g + stride_, T{0});
    if (call_.self) {  // the chain rule waits for the other role of the row
      for (int64_t k = 0; k < dim_; ++k) d_columns(i, k / kPanel<T> * kPanel<T>)[k % kPanel<T>] += radius * g[k];
      return;
    }
    chain_rule(y, factor, radius, normalize_, dim_, g);
    T* out = static_cast<T*>(call_.d_rows) + i * dim_;
    for (int64_t k = 0; k < dim_; ++k) out[k] = g[k] * gradient_scale_;
  }

  // d_columns of [begin, end) += W^T rows of the chunk. W is copied first, a few columns of all rows at a time: its rows are far
  // apart, and the tiles would wait for memory at each depth step.
  void columns_phase(int64_t begin, int64_t end, int64_t count, bool accumulate) {
    Buffer<T> w(kChunkRows * kColumnsTogether);
    for (int64_t j = begin; j < end; j += kColumnsTogether) {
      const int64_t columns = std::min(kColumnsTogether, end - j);
      for (int64_t r = 0; r < count; r += kChunkRows) {
        const int64_t depth = std::min(kChunkRows, count - r);
        copy_block(s_.get() + r * s_stride_ + j, depth, vector_width<T>(columns), w.get());
        for (int64_t k = 0; k < width_; k += kPanel<T>) {
          gemm_sliced<Order::transposed>(w.get(), kColumnsTogether, Slices<T>{rows_.get() + r * stride_ + k, kPanel<T>, stride_},
                                         d_columns(j, k), kPanel<T>, columns, depth, std::min(kPanel<T>, width_ - k), accumulate || r > 0);
        }
      }
    }
  }

  void copy_block(const T* s, int64_t rows, int64_t width, T* out) const {
    constexpr int64_t kAhead = 8;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < width; j += kLanes<T>) {
        __builtin_prefetch(s + (r + kAhead) * s_stride_ + j);
        store(out + r * kColumnsTogether + j, load(s + r * s_stride_ + j));
      }
    }
  }

  void finish_columns() {
    if (!wants_columns_) return;
    T* out = static_cast<T*>(call_.self ? call_.d_rows : call_.d_columns);
    parallel_for(pool_, panel_count<T>(m_), [&](int64_t begin, int64_t end) {
      Buffer<T> y(stride_);
      Buffer<T> g(stride_);
      for (int64_t j = begin * kPanel<T>; j < std::min(end * kPanel<T>, m_); ++j) {
        for (int64_t k = 0; k < width_; k += kPanel<T>) std::copy(d_columns(j, k), d_columns(j + 1, k), g.get() + k);
        if (n_ == 0) std::fill(g.get(), g.get() + stride_, T{0});  // nothing was added to the slices
        if (normalize_) {
          read_column(j, y.get());
          chain_rule(y.get(), column_factor_[j], T{1}, true, dim_, g.get());
        }
        for (int64_t k = 0; k < dim_; ++k) out[j * dim_ + k] = g[k] * gradient_scale_;
      }
    });
  }

  void count_row(int64_t i, const typename Rule::Row& row, const T* s, double* out) const {
    std::fill(out, out + kStatCount, 0.0);
    if (pairs_.ignores(i)) return;
    vec<T> positive_sum{}, negative_sum{};
    vec<T> best_positive = splat(Extremes<T>().max_positive), best_negative = splat(Extremes<T>().max_negative);
    int64_t counts[4] = {};
    pairs_.visit(i, 0, m_, [&](int64_t j, mask<T> positive, mask<T> negative) {
      const vec<T> v = load(s + j);
      counts[0] += count_lanes<T>(positive);
      counts[1] += count_lanes<T>(negative);
      counts[2] += count_lanes<T>(positive & rule_.mined_positive(v, row));
      counts[3] += count_lanes<T>(negative & rule_.mined_negative(v, row));
      positive_sum += positive ? v : vec<T>{};
      negative_sum += negative ? v : vec<T>{};
      best_positive = larger(best_positive, positive ? v : best_positive);
      best_negative = larger(best_negative, negative ? v : best_negative);
    });
    const double temperature = 1.0 / static_cast<double>(scale(i));
    out[kAnchors] = 1;
    for (int k = 0; k < 4; ++k) out[kPositives + k] = static_cast<double>(counts[k]);
    out[kAnchorsWithoutPositive] = counts[0] == 0;
    out[kAnchorsWithoutNegative] = counts[1] == 0;
    out[kTop1Hits] = max_lanes<T>(best_positive) > max_lanes<T>(best_negative);
    out[kPositiveSimilaritySum] = static_cast<double>(sum_lanes<T>(positive_sum)) * temperature;
    out[kNegativeSimilaritySum] = static_cast<double>(sum_lanes<T>(negative_sum)) * temperature;
    out[kActiveAnchors] = row.loss > T{0};
  }

  void add_stats(int64_t count) {
    if (call_.stats == nullptr) return;
    for (int64_t r = 0; r < count; ++r) {
      for (int k = 0; k < kStatCount; ++k) call_.stats[k] += row_stats_[r * kStatCount + k];
    }
  }

  // The reduced loss, the gradient of the temperature, and, where the divisor was not known before, its share in the gradients.
  void reduce() {
    T* loss = static_cast<T*>(call_.row_loss);
    double total = 0;
    double divisor = 0;
    for (int64_t i = 0; i < n_; ++i) {
      const double w = weight(i);
      if (w == 0) continue;
      total += w * static_cast<double>(loss[i]);
      if (call_.reduction == Reduction::mean || !(loss[i] == T{0})) divisor += w;
    }
    if (call_.reduction == Reduction::sum || call_.reduction == Reduction::none) divisor = 1;
    if (call_.reduction == Reduction::none && call_.weights != nullptr) {
      for (int64_t i = 0; i < n_; ++i) loss[i] *= static_cast<T>(call_.weights[i]);
    }
    const double inverse = divisor > 0 ? 1.0 / divisor : 0.0;
    *call_.loss = divisor > 0 ? total * inverse : 0.0;
    if (call_.d_temperature != nullptr) {
      if (!call_.temperature_per_row) *call_.d_temperature = 0;
      for (int64_t i = 0; i < n_; ++i) {
        const double slope = temperature_slope_[i] * inverse;
        if (call_.temperature_per_row) {
          call_.d_temperature[i] = slope;
        } else {
          *call_.d_temperature += slope;
        }
      }
    }
    if (call_.reduction != Reduction::mean_nonzero) return;
    scale_rows(call_.d_rows, n_, inverse);
    scale_rows(call_.d_columns, m_, inverse);
  }

  void scale_rows(void* data, int64_t rows, double factor) {
    if (data == nullptr) return;
    T* values = static_cast<T*>(data);
    parallel_for(pool_, rows, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin * dim_; k < end * dim_; ++k) values[k] *= static_cast<T>(factor);
    });
  }

  const PairLossCall& call_;
  const Rule rule_;
  const Parallel& pool_;
  const int64_t n_, m_, dim_;
  const bool normalize_;
  const int64_t width_;     // dim_ in whole vectors
  const int64_t stride_;    // of a padded row of embeddings
  const int64_t s_stride_;  // of a row of S
  const int64_t chunk_rows_;
  const bool wants_rows_, wants_columns_;
  Buffer<T> panels_;         // columns, packed for S
  Buffer<T> columns_;        // columns, sliced for d_rows
  Buffer<T> column_factor_;  // 1 / norm
  Buffer<T> rows_;           // rows of the chunk, divided by the temperature
  Buffer<T> row_factor_;     // 1 / norm
  Buffer<T> s_;              // S of the chunk, then W
  Buffer<T> d_chunk_;        // d_rows of the chunk
  Buffer<T> d_columns_;      // sliced like columns_: tiles then add to few pages, one after the other
  Buffer<int32_t> row_class_;
  Buffer<lane_int<T>> column_class_;
  Buffer<double> temperature_slope_;
  Buffer<double> row_stats_;
  PairSet<T> pairs_{};
  T gradient_scale_{1};
};

}  // namespace pairloom::PAIRLOOM_ISA
