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
#include "engine/fma_products.h"
#include "engine/pairs.h"
#include "engine/rows.h"
#include "engine/rule.h"

namespace pairloom::PAIRLOOM_ISA {

// Columns whose terms are summed in lanes of T; the sums of blocks are added in double. Millions of equal terms in one float
// lane would each be rounded the same way: 5e-3 off for 8 million columns.
constexpr int64_t kSumBlock = 2048;

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

template <class T, class Rule, class Products>
class PairLoss {
  static constexpr int64_t kBlockRows = Products::kBlockRows;
  static constexpr int64_t kChunkRows = Products::kChunkRows;

 public:
  PairLoss(const PairLossCall& call, const Rule& rule, const Parallel& pool)
      : call_(call),
        rule_(rule),
        pool_(pool),
        n_(call.rows.rows),
        m_(call.self ? call.rows.rows : call.columns.rows),
        dim_(call.rows.dim),
        normalize_(call.similarity == Similarity::cosine),
        stride_(padded_stride<T>(dim_)),
        s_stride_(padded_stride<T>(m_)),
        chunk_rows_(rows_per_chunk()),
        wants_rows_(call.d_rows != nullptr),
        wants_columns_(call.d_columns != nullptr || (call.self && call.d_rows != nullptr)),
        products_({.columns = m_,
                   .dim = dim_,
                   .chunk_rows = chunk_rows_,
                   .s_stride = s_stride_,
                   .wants_rows = wants_rows_,
                   .wants_columns = wants_columns_}),
        column_factor_(wants_columns_ ? m_ : 0),
        rows_(chunk_rows_ * stride_),
        row_factor_(chunk_rows_),
        s_(in_units(chunk_rows_) * s_stride_),
        d_chunk_(wants_rows_ ? in_units(chunk_rows_) * stride_ : 0),
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
      parallel_for(pool_, in_units(count) / Products::kRowUnit, [&](int64_t begin, int64_t end) {
        typename Products::Session session;
        const int64_t last = std::min(end * Products::kRowUnit, count);
        for (int64_t r = begin * Products::kRowUnit; r < last; r += kBlockRows)
          rows_phase(session, first, r, std::min(kBlockRows, last - r));
      });
      add_stats(count);
      if (wants_columns_) {
        constexpr int64_t kUnit = Products::kColumnUnit;
        parallel_for(pool_, (m_ + kUnit - 1) / kUnit, [&](int64_t begin, int64_t end) {
          typename Products::Session session;
          products_.d_columns(session, begin * kUnit, std::min(end * kUnit, m_), count, rows_.get(), s_.get(), first > 0);
        });
      }
    }
    finish_columns();
    reduce();
  }

 private:
  int64_t rows_per_chunk() const {
    // About 16 MiB of S, which the caches of today hold; never fewer than one chunk of full tiles, which feeds d_columns.
    const int64_t fitting = (int64_t{16} << 20) / (std::max<int64_t>(m_, 1) * static_cast<int64_t>(sizeof(T)));
    const int64_t rows = std::clamp(fitting / kChunkRows * kChunkRows, kChunkRows, 8 * kChunkRows);
    return std::min(rows, std::max<int64_t>(n_, 1));
  }

  static int64_t in_units(int64_t rows) { return (rows + Products::kRowUnit - 1) / Products::kRowUnit * Products::kRowUnit; }

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
    constexpr int64_t kPack = Products::kColumnPack;
    parallel_for(pool_, (m_ + kPack - 1) / kPack, [&](int64_t begin, int64_t end) {
      Buffer<T> rows(kPack * stride_);
      for (int64_t first = begin * kPack; first < std::min(end * kPack, m_); first += kPack) {
        const int64_t count = std::min(kPack, m_ - first);
        for (int64_t j = 0; j < count; ++j) {
          const T factor = load_row(column_matrix(), first + j, normalize_, rows.get() + j * stride_, stride_);
          if (wants_columns_) column_factor_[first + j] = factor;
        }
        products_.pack_columns(first, count, rows.get());
      }
    });
  }

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

  void rows_phase(typename Products::Session& session, int64_t chunk_first, int64_t r0, int64_t count) {
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

    products_.pack_rows(r0, count, rows);

    LaneExtremes extremes[kBlockRows];
    for (int64_t r = 0; r < count; ++r) extremes[r] = LaneExtremes();
    for (int64_t j = 0; j < m_; j += Products::kColumnBlock) {
      const int64_t end = std::min(j + Products::kColumnBlock, m_);
      products_.similarities(r0, count, rows, j, end, s + j);
      for (int64_t r = 0; r < count; ++r) extremes[r].add(pairs_, first + r, j, end, s + r * s_stride_);
    }

    typename Rule::Row row[kBlockRows];
    for (int64_t r = 0; r < count; ++r) {
      row[r] = row_loss(first + r, extremes[r].fold(), s + r * s_stride_);
      if (call_.stats != nullptr) count_row(first + r, row[r], s + r * s_stride_, row_stats_.get() + (r0 + r) * kStatCount);
    }

    if (!wants_rows_ && !wants_columns_ && call_.d_temperature == nullptr) return;
    double slope[kBlockRows] = {};
    T* d = wants_rows_ ? d_chunk_.get() + r0 * stride_ : nullptr;
    for (int64_t j = 0; j < m_; j += Products::kWeightBlock) {
      const int64_t end = std::min(j + Products::kWeightBlock, m_);
      for (int64_t r = 0; r < count; ++r) slope[r] += weigh_row(first + r, row[r], j, end, s + r * s_stride_);
      if (wants_rows_) products_.d_rows(session, count, s + j, j, end, d, j > 0);
    }
    for (int64_t r = 0; r < count; ++r) {
      // z = s / t, so dL/dt = sum of dL/dz * -z / t.
      if (call_.d_temperature != nullptr) temperature_slope_[first + r] = -slope[r] * static_cast<double>(scale(first + r));
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
    T* out = static_cast<T*>(call_.d_rows) + i * dim_;
    if (m_ == 0) std::fill(g, g + stride_, T{0});
    if (call_.self) {  // the chain rule waits for the other role of the row
      for (int64_t k = 0; k < dim_; ++k) out[k] = radius * g[k];
      return;
    }
    chain_rule(y, factor, radius, normalize_, dim_, g);
    for (int64_t k = 0; k < dim_; ++k) out[k] = g[k] * gradient_scale_;
  }

  void finish_columns() {
    if (!wants_columns_) return;
    constexpr int64_t kPack = Products::kColumnPack;
    T* gradient = static_cast<T*>(call_.self ? call_.d_rows : call_.d_columns);
    parallel_for(pool_, (m_ + kPack - 1) / kPack, [&](int64_t begin, int64_t end) {
      Buffer<T> y(stride_);
      Buffer<T> block(kPack * stride_);
      for (int64_t first = begin * kPack; first < std::min(end * kPack, m_); first += kPack) {
        const int64_t count = std::min(kPack, m_ - first);
        if (n_ == 0) std::fill(block.get(), block.get() + count * stride_, T{0});  // no chunk came
        if (n_ > 0) products_.read_d_columns(first, count, block.get());
        for (int64_t j = 0; j < count; ++j) {
          T* g = block.get() + j * stride_;
          T* out = gradient + (first + j) * dim_;
          if (call_.self) {
            for (int64_t k = 0; k < dim_; ++k) g[k] += out[k];
          }
          if (normalize_) {
            scaled_row(column_matrix(), first + j, column_factor_[first + j], y.get(), stride_);
            chain_rule(y.get(), column_factor_[first + j], T{1}, true, dim_, g);
          }
          for (int64_t k = 0; k < dim_; ++k) out[k] = g[k] * gradient_scale_;
        }
      }
    });
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
  const int64_t stride_;    // of a padded row of embeddings
  const int64_t s_stride_;  // of a row of S
  const int64_t chunk_rows_;
  const bool wants_rows_, wants_columns_;
  Products products_;
  Buffer<T> column_factor_;  // 1 / norm
  Buffer<T> rows_;           // rows of the chunk, divided by the temperature
  Buffer<T> row_factor_;     // 1 / norm
  Buffer<T> s_;              // S of the chunk, then W
  Buffer<T> d_chunk_;        // d_rows of the chunk
  Buffer<int32_t> row_class_;
  Buffer<lane_int<T>> column_class_;
  Buffer<double> temperature_slope_;
  Buffer<double> row_stats_;
  PairSet<T> pairs_{};
  T gradient_scale_{1};
};

}  // namespace pairloom::PAIRLOOM_ISA
