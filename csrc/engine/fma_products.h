// The three matrix products of a pair loss in the multiply-adds of the level: S = rows columns^T, d_rows = W columns,
// d_columns = W^T rows. It owns the packed operands and the gradient of the columns, whose layouts are its own business;
// engine/pair_loss.h drives it. engine/split_products.h does the same on matrix units.
#pragma once

#include "core/buffer.h"
#include "engine/gemm.h"
#include "engine/rows.h"

namespace pairloom::PAIRLOOM_ISA {

// Sizes of a pair loss that the packed operands depend on.
struct ProductSizes {
  int64_t columns;     // M
  int64_t dim;         // D
  int64_t chunk_rows;  // rows of S that exist at a time
  int64_t s_stride;    // of a row of S
  bool wants_rows;     // d_rows is asked for
  bool wants_columns;  // d_columns is asked for
  bool distances;      // S is made of squared distances instead of products
};

template <class T>
class FmaProducts {
 public:
  // Rows come with all their factors: 1 / norm, 1 / temperature.
  static constexpr bool kRaw = false;
  // Rows that a thread takes at least (whole tiles), and works on together (their operands fit the second-level cache).
  static constexpr int64_t kRowUnit = kTileRows;
  static constexpr int64_t kBlockRows = 32 * kTileRows;
  // The depth of d_columns += W^T rows, and the least rows of a chunk; whole panels too.
  static constexpr int64_t kChunkRows = 2 * kBlockRows;
  // Rows over which the sums of a column are kept apart; a chunk holds whole strips.
  static constexpr int64_t kStripRows = 8 * kTileRows;
  // Columns per pass over a tile of S while it is in the second-level cache.
  static constexpr int64_t kColumnBlock = 512;
  // Columns per depth step of d_rows += W columns.
  static constexpr int64_t kWeightBlock = 128;
  // Columns that are packed, and whose gradient is read, at a time; columns that a thread takes at least for d_columns.
  static constexpr int64_t kColumnPack = kPanel<T>;
  static constexpr int64_t kColumnUnit = 48;

  explicit FmaProducts(const ProductSizes& sizes)
      : sizes_(sizes),
        width_(vector_width<T>(sizes.dim)),
        stride_(padded_stride<T>(sizes.dim)),
        panels_(panel_count<T>(sizes.columns) * kPanel<T> * sizes.dim),
        columns_(needs_columns() ? sizes.columns * panel_width<T>(sizes.dim) : 0),
        d_columns_(sizes.wants_columns ? sizes.columns * panel_width<T>(sizes.dim) : 0) {}

  // What a thread makes before it works on products.
  struct Session {
    Session() : w(kChunkRows * kColumnsTogether) {}
    Buffer<T> w;  // a block of W
  };

  // `count` columns from `first` on (a multiple of kColumnPack), as rows of `stride_` padded with zeros.
  void pack_columns(int64_t first, int64_t count, const T* rows) {
    pack_panel<T>({rows, stride_}, count, sizes_.dim, nullptr, panels_.get() + first * sizes_.dim);
    if (!needs_columns()) return;
    for (int64_t j = 0; j < count; ++j) {
      for (int64_t k = 0; k < width_; k += kPanel<T>) {
        const T* components = rows + j * stride_ + k;
        std::copy(components, components + kPanel<T>, columns_.get() + k * sizes_.columns + (first + j) * kPanel<T>);
      }
    }
  }

  // Rows [r, r + count) of the chunk are loaded; the products read them as they are.
  void pack_rows(int64_t, int64_t, const T*) {}

  // S of `count` rows with columns [j, end); `j` is a whole number of panels.
  void similarities(int64_t, int64_t count, const T* rows, int64_t j, int64_t end, T* s) const {
    const T* panels = panels_.get() + j * sizes_.dim;
    if (sizes_.distances) {
      gemm_packed<SquaredDifference>(rows, stride_, panels, sizes_.dim, panel_count<T>(end - j), s, sizes_.s_stride, count);
    } else {
      gemm_packed<Dot>(rows, stride_, panels, sizes_.dim, panel_count<T>(end - j), s, sizes_.s_stride, count);
    }
  }

  // d (+)= W columns of `count` rows, over columns [j, end). Distances pull: sums of w (column - row).
  void d_rows(Session&, int64_t count, const T* w, const T* rows, int64_t j, int64_t end, T* d, bool accumulate) const {
    const Slices<T> slices{columns_.get() + j * kPanel<T>, sizes_.columns * kPanel<T>, kPanel<T>};
    if (sizes_.distances) {
      gemm_sliced<Pull, Order::rows>(w, sizes_.s_stride, slices, d, stride_, count, end - j, width_, accumulate, rows);
    } else {
      gemm_sliced<Dot, Order::rows>(w, sizes_.s_stride, slices, d, stride_, count, end - j, width_, accumulate);
    }
  }

  // d_columns of [begin, end) (+)= W^T rows (pulls: sums of w (row - column)), over rows [from, to) of the chunk. W is copied first, a few
  // columns of all rows at a time: its rows are far apart, and the tiles would wait for memory at each depth step.
  void d_columns(Session& session, int64_t begin, int64_t end, int64_t from, int64_t to, const T* rows, const T* s, bool accumulate) {
    T* w = session.w.get();
    for (int64_t j = begin; j < end; j += kColumnsTogether) {
      const int64_t columns = std::min(kColumnsTogether, end - j);
      for (int64_t r = from; r < to; r += kChunkRows) {
        const int64_t depth = std::min(kChunkRows, to - r);
        copy_block(s + r * sizes_.s_stride + j, depth, vector_width<T>(columns), w);
        for (int64_t k = 0; k < width_; k += kPanel<T>) {
          const Slices<T> slice{rows + r * stride_ + k, kPanel<T>, stride_};
          const int64_t width = std::min(kPanel<T>, width_ - k);
          if (sizes_.distances) {
            gemm_sliced<Pull, Order::transposed>(w, kColumnsTogether, slice, d_slice(j, k), kPanel<T>, columns, depth, width,
                                                 accumulate || r > from, columns_.get() + slice_offset(j, k));
          } else {
            gemm_sliced<Dot, Order::transposed>(w, kColumnsTogether, slice, d_slice(j, k), kPanel<T>, columns, depth, width,
                                                accumulate || r > from);
          }
        }
      }
    }
  }

  void clear_d_columns(int64_t begin, int64_t end) {
    for (int64_t k = 0; k < width_; k += kPanel<T>) std::fill(d_slice(begin, k), d_slice(end, k), T{0});
  }

  // The gradient of `count` columns from `first` on (a multiple of kColumnPack), as rows of `stride_`.
  void read_d_columns(int64_t first, int64_t count, T* out) const {
    for (int64_t j = 0; j < count; ++j) {
      for (int64_t k = 0; k < width_; k += kPanel<T>) {
        std::copy(d_slice(first + j, k), d_slice(first + j + 1, k), out + j * stride_ + k);
      }
    }
  }

 private:
  // Columns whose W is copied together: whole tiles, and whole vectors of W.
  static constexpr int64_t kColumnsTogether = 4 * kColumnUnit;

  // Of columns, as rows of their own.
  bool needs_columns() const { return sizes_.wants_rows || (sizes_.distances && sizes_.wants_columns); }

  // Components [k, k + kPanel) of column j, and of its gradient.
  int64_t slice_offset(int64_t j, int64_t k) const { return k * sizes_.columns + j * kPanel<T>; }
  T* d_slice(int64_t j, int64_t k) const { return d_columns_.get() + slice_offset(j, k); }

  void copy_block(const T* s, int64_t rows, int64_t width, T* out) const {
    constexpr int64_t kAhead = 8;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < width; j += kLanes<T>) {
        __builtin_prefetch(s + (r + kAhead) * sizes_.s_stride + j);
        store(out + r * kColumnsTogether + j, load(s + r * sizes_.s_stride + j));
      }
    }
  }

  const ProductSizes sizes_;
  const int64_t width_;   // dim in whole vectors
  const int64_t stride_;  // of a padded row of embeddings
  Buffer<T> panels_;      // columns, packed for S
  Buffer<T> columns_;     // columns, sliced for d_rows: kPanel components of all columns, then the next ones
  Buffer<T> d_columns_;   // sliced like columns_: tiles then add to few pages, one after the other
};

}  // namespace pairloom::PAIRLOOM_ISA
