// The three matrix products of a pair loss on a matrix unit (engine/matrix_unit.h), summed in float32; the class that
// engine/fma_products.h describes. Rows and columns are split into kParts: three for float32 embeddings; two for float16 and one for
// bfloat16, which are taken as they are (kRaw). W has at least two. Packed operands are 32 x 32 blocks, split; d_columns is kept
// transposed, block by block, because W can be the right operand without being transposed and the left one not.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/buffer.h"
#include "core/parallel.h"
#include "engine/fma_products.h"
#include "engine/matrix_unit.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)

namespace pairloom::PAIRLOOM_ISA {

template <int kParts>
class SplitProducts {
  static constexpr int kWeightParts = std::max(kParts, 2);
  static constexpr int64_t kSteps = kDepthSteps<kParts>;
  static constexpr int64_t kPackedStep = kStep<kParts>;
  static constexpr int64_t kWeightStep = kStep<kWeightParts>;

 public:
  // Half-precision rows are operands as they are, exact; what they are to be multiplied with (1 / norm, 1 / temperature) is applied to S.
  static constexpr bool kRaw = kParts < 3;
  static constexpr int64_t kRowUnit = kBlock;
  static constexpr int64_t kBlockRows = 8 * kBlock;
  static constexpr int64_t kChunkRows = 8 * kBlock;
  static constexpr int64_t kStripRows = kBlock;
  static constexpr int64_t kWeightBlock = 8 * kBlock;
  static constexpr int64_t kColumnBlock = 8 * kBlock;
  static constexpr int64_t kColumnPack = kBlock;
  static constexpr int64_t kColumnUnit = 2 * kBlock;

  explicit SplitProducts(const ProductSizes& sizes)
      : sizes_(sizes),
        stride_(padded_stride<float>(sizes.dim)),
        dim_blocks_(blocks(sizes.dim)),
        chunk_blocks_(blocks(sizes.chunk_rows)),
        columns_for_s_(blocks(sizes.columns) * dim_blocks_ * kPackedStep),
        columns_for_rows_(
            sizes.wants_rows ? (blocks(sizes.columns) + kWeightSteps - 1) / kWeightSteps * kWeightSteps * dim_blocks_ * kPackedStep : 0),
        rows_for_s_(chunk_blocks_ * dim_blocks_ * kPackedStep),
        rows_for_columns_(sizes.wants_columns ? chunk_blocks_ * dim_blocks_ * kPackedStep : 0),
        d_columns_(sizes.wants_columns ? blocks(sizes.columns) * dim_blocks_ * kBlock * kBlock : 0) {}

  class Session {
   public:
    Session() : w(kBlockRows * kWeightBlock / (kBlock * kBlock) * kWeightStep) {}
    Buffer<Pair> w;  // a block of W, split

   private:
    TileRegisters registers_;
  };

  void pack_columns(int64_t first, int64_t count, const float* rows) {
    for (int64_t k = 0; k < dim_blocks_; ++k) {
      split_along<kParts, Lie::column>(rows + k * kBlock, stride_, count, kBlock, column_panel(first) + k * kPackedStep);
      if (sizes_.wants_rows) split_across<kParts, Lie::row>(rows + k * kBlock, stride_, count, kBlock, weight_panel(first, k));
    }
  }

  void pack_rows(int64_t r0, int64_t count, const float* rows) {
    for (int64_t r = 0; r < count; r += kBlock) {
      const float* block = rows + r * stride_;
      for (int64_t k = 0; k < dim_blocks_; ++k) {
        split_along<kParts, Lie::row>(block + k * kBlock, stride_, count - r, kBlock, row_panel(r0 + r) + k * kPackedStep);
        if (sizes_.wants_columns) split_across<kParts, Lie::column>(block + k * kBlock, stride_, count - r, kBlock, row_slice(r0 + r, k));
      }
    }
  }

  // The loops below let the operand that is used again and again be a panel of kDepthSteps blocks, and bring the next panel nearer
  // meanwhile. What they cycle through fits the second-level cache for any D.
  void similarities(int64_t r0, int64_t count, const float*, int64_t j, int64_t end, float* s) const {
    for (int64_t k = 0; k < dim_blocks_; k += kSteps) {
      const int64_t steps = std::min(kSteps, dim_blocks_ - k);
      for (int64_t column = j; column < end; column += kBlock) {
        const Pair* panel = column_panel(column) + k * kPackedStep;
        const Pair* ahead = panel + dim_blocks_ * kPackedStep;
        for (int64_t r = 0; r < count; r += kBlock, ahead += kAheadPairs<kParts>) {
          float* c = s + r * sizes_.s_stride + (column - j);
          multiply_blocks<kParts, kParts>(row_panel(r0 + r) + k * kPackedStep, panel, steps, c, sizes_.s_stride, k > 0, ahead);
        }
      }
    }
  }

  void d_rows(Session& session, int64_t count, const float* w, const float*, int64_t j, int64_t end, float* d, bool accumulate) const {
    const int64_t steps = blocks(end - j);
    const auto split_w = [&](int64_t r, int64_t step) { return session.w.get() + (r / kBlock * kWeightSteps + step) * kWeightStep; };
    for (int64_t r = 0; r < count; r += kBlock) {
      for (int64_t step = 0; step < steps; ++step) {
        split_along<kWeightParts, Lie::row>(w + r * sizes_.s_stride + step * kBlock, sizes_.s_stride, count - r,
                                            in_vectors(end - j - step * kBlock), split_w(r, step));
      }
    }
    for (int64_t k = 0; k < dim_blocks_; ++k) {
      for (int64_t step = 0; step < steps; step += kSteps) {
        const Pair* panel = weight_panel(j, k) + step * kPackedStep;
        const Pair* ahead = panel + kSteps * kPackedStep;
        for (int64_t r = 0; r < count; r += kBlock, ahead += kAheadPairs<kParts>) {
          multiply_blocks<kWeightParts, kParts>(split_w(r, step), panel, std::min(kSteps, steps - step), d + r * stride_ + k * kBlock,
                                                stride_, accumulate || step > 0, ahead);
        }
      }
    }
  }

  void d_columns(Session& session, int64_t begin, int64_t end, int64_t from, int64_t to, const float*, const float* s, bool accumulate) {
    for (int64_t r = from; r < to; r += kDepth) {
      const int64_t depth = std::min(kDepth, to - r);
      const int64_t steps = blocks(depth);
      for (int64_t first = 0; first < dim_blocks_; first += kDimTogether) {
        const int64_t last = std::min(first + kDimTogether, dim_blocks_);
        for (int64_t j = begin; j < end; j += kBlock) {
          for (int64_t step = 0; step < steps; ++step) {
            split_across<kWeightParts, Lie::row>(s + (r + step * kBlock) * sizes_.s_stride + j, sizes_.s_stride, depth - step * kBlock,
                                                 in_vectors(end - j), session.w.get() + step * kWeightStep);
          }
          for (int64_t step = 0; step < steps; step += kSteps) {
            for (int64_t k = first; k < last; ++k) {
              multiply_blocks<kParts, kWeightParts>(row_slice(r, k) + step * kPackedStep, session.w.get() + step * kWeightStep,
                                                    std::min(kSteps, steps - step), d_block(j, k), kBlock, accumulate || r + step > from,
                                                    d_block(j + kBlock, k));
            }
          }
        }
      }
    }
  }

  void clear_d_columns(int64_t begin, int64_t end) { std::fill(d_block(begin, 0), d_block(end + kBlock - 1, 0), 0.0f); }

  void read_d_columns(int64_t first, int64_t count, float* out) const {
    for (int64_t k = 0; k < dim_blocks_; ++k) {
      const float* block = d_block(first, k);
      for (int64_t j = 0; j < count; ++j) {
        for (int64_t i = 0; i < kBlock; ++i) out[j * stride_ + k * kBlock + i] = block[i * kBlock + j];
      }
    }
  }

 private:
  static constexpr int64_t kDepth = 16 * kBlock;  // rows of W per pass over d_columns
  static constexpr int64_t kDimTogether = 8;      // blocks of components in such a pass
  static constexpr int64_t kWeightSteps = kWeightBlock / kBlock;

  static int64_t blocks(int64_t length) { return (length + kBlock - 1) / kBlock; }
  static int64_t in_vectors(int64_t columns) { return columns > kTile ? kBlock : kTile; }

  // 32 columns over the whole depth of S.
  Pair* column_panel(int64_t column) const { return columns_for_s_.get() + column / kBlock * dim_blocks_ * kPackedStep; }
  // The block of W's depth that `column` begins or lies in, of components 32 k and on.
  Pair* weight_panel(int64_t column, int64_t k) const {
    const int64_t panel = column / kWeightBlock * dim_blocks_ + k;
    return columns_for_rows_.get() + (panel * kWeightSteps + column % kWeightBlock / kBlock) * kPackedStep;
  }
  // 32 rows of the chunk over the whole depth of S.
  Pair* row_panel(int64_t row) const { return rows_for_s_.get() + row / kBlock * dim_blocks_ * kPackedStep; }
  // Components 32 k and on, from a row of the chunk on.
  Pair* row_slice(int64_t row, int64_t k) const { return rows_for_columns_.get() + (k * chunk_blocks_ + row / kBlock) * kPackedStep; }
  float* d_block(int64_t column, int64_t k) const { return d_columns_.get() + (column / kBlock * dim_blocks_ + k) * kBlock * kBlock; }

  const ProductSizes sizes_;
  const int64_t stride_;  // of a padded row of embeddings
  const int64_t dim_blocks_;
  const int64_t chunk_blocks_;
  Buffer<Pair> columns_for_s_;
  Buffer<Pair> columns_for_rows_;
  Buffer<Pair> rows_for_s_;
  Buffer<Pair> rows_for_columns_;
  Buffer<float> d_columns_;
};

// The largest |x|; NaN if there is one, which integers order above everything.
inline float largest_magnitude(const float* x, int64_t count) {
  int32_t peak = 0;
  for (int64_t k = 0; k < count; ++k) {
    int32_t bits;
    std::memcpy(&bits, x + k, sizeof bits);
    peak = std::max(peak, bits & 0x7fffffff);
  }
  float magnitude;
  std::memcpy(&magnitude, &peak, sizeof magnitude);
  return magnitude;
}

// The smallest and the largest of some magnitudes. Zeros are passed over; NaN counts as infinity.
struct Magnitudes {
  double smallest = std::numeric_limits<double>::infinity();
  double largest = 0;

  void add(double x) {
    if (x == 0) return;
    if (std::isnan(x)) x = std::numeric_limits<double>::infinity();
    smallest = std::min(smallest, x);
    largest = std::max(largest, x);
  }
  bool within(double limit) const { return smallest >= 1 / limit && largest <= limit; }
};

// Of the largest component of each row.
inline Magnitudes row_magnitudes(const Matrix& m, const Parallel& pool) {
  Buffer<float> peaks(m.rows);
  parallel_for(pool, m.rows, [&](int64_t begin, int64_t end) {
    Buffer<float> row(m.dim);
    for (int64_t i = begin; i < end; ++i) {
      copy_row(m, i, row.get());
      peaks[i] = largest_magnitude(row.get(), m.dim);
    }
  });
  Magnitudes all;
  for (int64_t i = 0; i < m.rows; ++i) all.add(static_cast<double>(peaks[i]));
  return all;
}

// Whether every number that matters is finite, and neither so large nor so small that a part of it, or a sum of products of numbers
// that are taken as they are, leaves the range.
inline bool splits_exactly(const PairLossCall& call, const Parallel& pool, bool raw) {
  const double limit = raw ? 0x1p40 : 0x1p60;
  const int64_t n = call.rows.rows;
  Magnitudes temperature, weights;
  for (int64_t i = 0; call.temperature != nullptr && i < (call.temperature_per_row ? n : 1); ++i) temperature.add(call.temperature[i]);
  for (int64_t i = 0; call.weights != nullptr && i < n; ++i) weights.add(std::abs(call.weights[i]));
  if (!temperature.within(0x1p30) || !weights.within(limit)) return false;
  const Magnitudes rows = row_magnitudes(call.rows, pool);
  const Magnitudes columns = call.self ? rows : row_magnitudes(call.columns, pool);
  if (!rows.within(limit) || !columns.within(limit)) return false;
  if (!raw || call.similarity != Similarity::cosine) return true;
  // W takes all the factors at once then: weight / (temperature |x| |y|).
  if (call.temperature == nullptr) temperature.add(1);
  if (call.weights == nullptr) weights.add(1);
  const double dim = static_cast<double>(std::max<int64_t>(call.rows.dim, 1));
  return weights.largest / (temperature.smallest * rows.smallest * columns.smallest) <= 0x1p100 &&
         weights.smallest / (temperature.largest * rows.largest * columns.largest * dim) >= 0x1p-90;
}

}  // namespace pairloom::PAIRLOOM_ISA

#endif
