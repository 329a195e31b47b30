// What every way through the pairs of a loss shares: the chunk of rows, the columns, who is whose positive, and the way from the
// gradients of loaded rows back to the gradients of the embeddings. engine/pair_loss.h and engine/pair_sweep.h are the ways.
// The temperature is folded into the rows (z = (x / temperature) . y), the norms of cosine into rows and columns. Distances are made of
// the rows as they are, z = -|x - y|^2 / temperature or -|x - y| / temperature, and come back as pulls: dz/dx is a multiple of y - x.
// Products that take rows raw (Products::kRaw) leave all factors to S: z = a_i b_j (x . y) with a = 1 / (norm temperature), b = 1 / norm.
#pragma once

#include <limits>

#include "core/buffer.h"
#include "core/parallel.h"
#include "engine/fma_products.h"
#include "engine/pairs.h"
#include "engine/reduce.h"
#include "engine/rows.h"
#include "engine/rule.h"

namespace pairloom::PAIRLOOM_ISA {

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

template <class T, class Products>
class PairRun {
 protected:
  static constexpr int64_t kChunkRows = Products::kChunkRows;

  PairRun(const PairLossCall& call, const Parallel& pool)
      : call_(call),
        pool_(pool),
        n_(call.rows.rows),
        m_(call.self ? call.rows.rows : call.columns.rows),
        dim_(call.rows.dim),
        normalize_(call.similarity == Similarity::cosine),
        distances_(is_distance(call.similarity)),
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
                   .wants_columns = wants_columns_,
                   .distances = distances_}),
        column_factor_(wants_columns_ || Products::kRaw ? vector_width<T>(m_) : 0),
        rows_(chunk_rows_ * stride_),
        row_factor_(chunk_rows_),
        s_(in_units(chunk_rows_) * s_stride_),
        d_chunk_(wants_rows_ ? in_units(chunk_rows_) * stride_ : 0),
        row_class_(n_),
        column_class_(call.row_labels != nullptr ? vector_width<T>(m_) : 0),
        row_words_(n_ * call.label_words),
        column_words_(call.label_words * vector_width<T>(m_)),
        temperature_slope_(call.d_temperature != nullptr ? n_ : 0),
        row_stats_(call.stats != nullptr ? chunk_rows_ * kStatCount : 0) {
    if (call.stats != nullptr) std::fill(call.stats, call.stats + kStatCount, 0.0);
  }

  int64_t rows_per_chunk() const {
    // About 16 MiB of S, which the caches of today hold, or up to 512 rows in 32 MiB: every chunk costs a pass over d_columns. Never fewer
    // than one chunk of full tiles, which feeds d_columns.
    const int64_t fitting = (int64_t{16} << 20) / (std::max<int64_t>(m_, 1) * static_cast<int64_t>(sizeof(T)));
    const int64_t wanted = std::max(fitting, std::min<int64_t>(2 * fitting, 512));
    const int64_t rows = std::clamp(wanted / kChunkRows * kChunkRows, kChunkRows, 8 * kChunkRows);
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
    read_words(call_.row_labels, n_, 1, call_.label_words, row_words_.get());
    const int64_t width = vector_width<T>(m_);
    std::fill(column_words_.get(), column_words_.get() + call_.label_words * width, lane_int<T>{0});
    read_words(call_.self ? call_.row_labels : call_.column_labels, call_.self ? n_ : call_.column_label_count, width, 1,
               column_words_.get());
    pairs_ = PairSet<T>{.column_class = labelled ? column_class_.get() : nullptr,
                        .row_class = row_class_.get(),
                        .same_class_is_positive = call_.same_label_is_positive,
                        .own_column_is_positive = call_.target_is_row,
                        .has_own_column = call_.target_is_row || call_.self,
                        .columns = m_,
                        .words = call_.label_words,
                        .word_stride = width,
                        .column_words = column_words_.get(),
                        .row_words = row_words_.get()};
  }

  // Word w of multi-hot row i to out[w * word_stride + i * row_stride]; ignored rows share nothing.
  void read_words(const int64_t* labels, int64_t count, int64_t word_stride, int64_t row_stride, lane_int<T>* out) const {
    for (int64_t i = 0; i < count && labels != nullptr; ++i) {
      for (int64_t w = 0; w < call_.label_words; ++w) {
        const int64_t word = labels[i * call_.label_words + w];
        out[w * word_stride + i * row_stride] = static_cast<lane_int<T>>(word == -1 ? 0 : word);
      }
    }
  }

  void pack_columns() {
    for (int64_t j = m_; Products::kRaw && j < vector_width<T>(m_); ++j) column_factor_[j] = T{0};
    constexpr int64_t kPack = Products::kColumnPack;
    parallel_for(pool_, (m_ + kPack - 1) / kPack, [&](int64_t begin, int64_t end) {
      Buffer<T> rows(kPack * stride_);
      for (int64_t first = begin * kPack; first < std::min(end * kPack, m_); first += kPack) {
        const int64_t count = std::min(kPack, m_ - first);
        for (int64_t j = 0; j < count; ++j) {
          const T factor = load_as_wanted(column_matrix(), first + j, pairs_.ignores_column(first + j), rows.get() + j * stride_);
          if (wants_columns_ || Products::kRaw) column_factor_[first + j] = factor;
        }
        products_.pack_columns(first, count, rows.get());
      }
    });
  }

  double weight(int64_t row) const { return weight_of_row(call_, row); }

  T scale(int64_t row) const {
    if (call_.temperature == nullptr) return T{1};
    return static_cast<T>(1.0 / call_.temperature[call_.temperature_per_row ? row : 0]);
  }

  // Row i as the products want it; returns 1 / norm, or 1. What takes no part is zero: its weights are too, but 0 times NaN or infinity
  // would reach the gradients of all others.
  T load_as_wanted(const Matrix& m, int64_t i, bool ignored, T* out) const {
    if (ignored) {
      std::fill(out, out + stride_, T{0});
      return T{0};
    }
    if (!Products::kRaw) return load_row(m, i, normalize_, out, stride_);
    scaled_row(m, i, T{1}, out, stride_);
    return normalize_ ? inverse_norm(out, dim_) : T{1};
  }

  // What a row of the chunk was multiplied with besides that.
  T radius(int64_t i) const { return distances_ || Products::kRaw ? T{1} : scale(i); }

  // `count` rows from row r0 of the chunk on, which begins at row chunk_first.
  void load_rows(int64_t chunk_first, int64_t r0, int64_t count) {
    T* rows = rows_.get() + r0 * stride_;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t i = chunk_first + r0 + r;
      row_factor_[r0 + r] = load_as_wanted(call_.rows, i, pairs_.ignores(i), rows + r * stride_);
      const T factor = radius(i);
      if (factor != T{1}) {
        for (int64_t k = 0; k < dim_; ++k) rows[r * stride_ + k] *= factor;
      }
    }
    products_.pack_rows(r0, count, rows);
  }

  void finish_row(int64_t i, const T* y, T factor, T* g) {
    const T radius = this->radius(i);
    T* out = static_cast<T*>(call_.d_rows) + i * dim_;
    if (m_ == 0 || pairs_.ignores(i)) std::fill(g, g + stride_, T{0});
    if (call_.self) {  // the chain rule waits for the other role of the row
      for (int64_t k = 0; k < dim_; ++k) out[k] = radius * g[k];
      return;
    }
    along_row(y, factor, radius, g);
    for (int64_t k = 0; k < dim_; ++k) out[k] = g[k] * gradient_scale_;
  }

  // From the gradient of a loaded row y to that of its embedding. A raw row is on the sphere of its own radius, 1 / factor, and
  // products of raw rows have the factor already.
  void along_row(const T* y, T factor, T radius, T* g) const {
    if (Products::kRaw && (!normalize_ || factor == T{0})) return;
    chain_rule(y, factor, Products::kRaw ? T{1} / factor : radius, normalize_, dim_, g);
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
        products_.read_d_columns(first, count, block.get());
        const int64_t untouched = std::clamp<int64_t>(untouched_columns_ - first, 0, count);
        std::fill(block.get(), block.get() + untouched * stride_, T{0});
        for (int64_t j = 0; j < count; ++j) {
          T* g = block.get() + j * stride_;
          T* out = gradient + (first + j) * dim_;
          if (pairs_.ignores_column(first + j)) {
            std::fill(out, out + dim_, T{0});
            continue;
          }
          if (call_.self) {
            for (int64_t k = 0; k < dim_; ++k) g[k] += out[k];
          }
          if (normalize_) {
            const T factor = column_factor_[first + j];
            scaled_row(column_matrix(), first + j, Products::kRaw ? T{1} : factor, y.get(), stride_);
            along_row(y.get(), factor, T{1}, g);
          }
          for (int64_t k = 0; k < dim_; ++k) out[k] = g[k] * gradient_scale_;
        }
      }
    });
  }

  // What the products made of row r of the chunk (row i) and columns [begin, end), to z in place.
  void to_logits(int64_t i, int64_t r, int64_t begin, int64_t end, T* s) const {
    if constexpr (Products::kRaw) {
      const T factor = row_factor_[r] * scale(i);
      for (int64_t j = begin; j < end; ++j) s[j] *= factor * column_factor_[j];
    } else if (distances_) {
      const T factor = -scale(i);
      const bool root = call_.similarity == Similarity::euclidean;
      for (int64_t j = begin; j < end; ++j) s[j] = factor * (root ? std::sqrt(s[j]) : s[j]);
    }
  }

  // dL/dz of a vector of pairs from column j on, to what the products of the gradients take.
  PAIRLOOM_INLINE vec<T> to_weights(int64_t i, int64_t r, int64_t j, vec<T> z, vec<T> w) const {
    if constexpr (Products::kRaw) return w * (row_factor_[r] * scale(i)) * load(column_factor_.get() + j);
    if (!distances_) return w;
    const T inverse_temperature = scale(i);
    if (call_.similarity == Similarity::squared_euclidean) return w * (T{2} * inverse_temperature);
    return z == T{0} ? vec<T>{} : -w * (inverse_temperature * inverse_temperature) / z;  // z = -|x - y| / temperature
  }

  // The gradient of the temperature: a sum over rows, or one for each.
  void reduce_temperature(double factor) {
    if (call_.d_temperature == nullptr) return;
    if (!call_.temperature_per_row) *call_.d_temperature = 0;
    for (int64_t i = 0; i < n_; ++i) {
      const double slope = temperature_slope_[i] * factor;
      if (call_.temperature_per_row) {
        call_.d_temperature[i] = slope;
      } else {
        *call_.d_temperature += slope;
      }
    }
  }

  // Where row r of the chunk puts its statistics, and those of `count` rows into the call's.
  double* row_stats(int64_t r) { return row_stats_.get() + r * kStatCount; }
  void add_stats(int64_t count) {
    if (call_.stats == nullptr) return;
    for (int64_t r = 0; r < count; ++r) {
      for (int k = 0; k < kStatCount; ++k) call_.stats[k] += row_stats(r)[k];
    }
  }

  // Gradients are scaled by the divisor of the mean where that does not depend on the losses, else at the end.
  bool divisor_is_known() const { return call_.reduction == Reduction::mean && call_.row_terms == nullptr; }
  void begin_reduction() {
    if (!divisor_is_known()) return;
    double total = 0;
    for (int64_t i = 0; i < n_; ++i) total += weight(i);
    if (total > 0) gradient_scale_ = static_cast<T>(1.0 / total);
  }
  void end_reduction() {
    const double inverse = reduce_losses<T>(call_);
    reduce_temperature(inverse);
    if (divisor_is_known() || inverse == 1.0) return;
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
  const Parallel& pool_;
  const int64_t n_, m_, dim_;
  const bool normalize_, distances_;
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
  Buffer<lane_int<T>> row_words_;
  Buffer<lane_int<T>> column_words_;
  Buffer<double> temperature_slope_;
  Buffer<double> row_stats_;  // of the chunk
  PairSet<T> pairs_{};
  T gradient_scale_{1};
  int64_t untouched_columns_ = 0;  // the first columns, whose gradient no chunk has added to
};

}  // namespace pairloom::PAIRLOOM_ISA
