// The three matrix products of a pair loss on a matrix unit (engine/matrix_unit.h), float32 only; the class that
// engine/fma_products.h describes. Packed operands are 32 x 32 blocks, split; d_columns is kept transposed, block by block, because
// W can be the right operand without being transposed and the left one not.
#pragma once

#include "core/buffer.h"
#include "core/parallel.h"
#include "engine/fma_products.h"
#include "engine/matrix_unit.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)

namespace pairloom::PAIRLOOM_ISA {

class SplitProducts {
 public:
  static constexpr int64_t kRowUnit = kBlock;
  static constexpr int64_t kBlockRows = 8 * kBlock;
  static constexpr int64_t kChunkRows = 8 * kBlock;
  static constexpr int64_t kStripRows = kBlock;
  static constexpr int64_t kWeightBlock = 2 * kDepthSteps * kBlock;
  static constexpr int64_t kColumnBlock = 8 * kBlock;
  static constexpr int64_t kColumnPack = kBlock;
  static constexpr int64_t kColumnUnit = 2 * kBlock;

  explicit SplitProducts(const ProductSizes& sizes)
      : sizes_(sizes),
        stride_(padded_stride<float>(sizes.dim)),
        dim_blocks_(blocks(sizes.dim)),
        chunk_blocks_(blocks(sizes.chunk_rows)),
        columns_for_s_(blocks(sizes.columns) * dim_blocks_ * kStep),
        columns_for_rows_(sizes.wants_rows ? (blocks(sizes.columns) + kWeightSteps - 1) / kWeightSteps * kWeightSteps * dim_blocks_ * kStep
                                           : 0),
        rows_for_s_(chunk_blocks_ * dim_blocks_ * kStep),
        rows_for_columns_(sizes.wants_columns ? chunk_blocks_ * dim_blocks_ * kStep : 0),
        d_columns_(sizes.wants_columns ? blocks(sizes.columns) * dim_blocks_ * kBlock * kBlock : 0) {}

  class Session {
   public:
    Session() : w(kBlockRows * kWeightBlock / (kBlock * kBlock) * kStep) {}
    Buffer<Pair> w;  // a block of W, split

   private:
    TileRegisters registers_;
  };

  void pack_columns(int64_t first, int64_t count, const float* rows) {
    for (int64_t k = 0; k < dim_blocks_; ++k) {
      split_along<Lie::column>(rows + k * kBlock, stride_, count, kBlock, column_panel(first) + k * kStep);
      if (sizes_.wants_rows) split_across<Lie::row>(rows + k * kBlock, stride_, count, kBlock, weight_panel(first, k));
    }
  }

  void pack_rows(int64_t r0, int64_t count, const float* rows) {
    for (int64_t r = 0; r < count; r += kBlock) {
      const float* block = rows + r * stride_;
      for (int64_t k = 0; k < dim_blocks_; ++k) {
        split_along<Lie::row>(block + k * kBlock, stride_, count - r, kBlock, row_panel(r0 + r) + k * kStep);
        if (sizes_.wants_columns) split_across<Lie::column>(block + k * kBlock, stride_, count - r, kBlock, row_slice(r0 + r, k));
      }
    }
  }

  // The loops below let the operand that is used again and again be a panel of kDepthSteps blocks, and bring the next panel nearer
  // meanwhile. What they cycle through fits the second-level cache for any D.
  void similarities(int64_t r0, int64_t count, const float*, int64_t j, int64_t end, float* s) const {
    for (int64_t k = 0; k < dim_blocks_; k += kDepthSteps) {
      const int64_t steps = std::min(kDepthSteps, dim_blocks_ - k);
      for (int64_t column = j; column < end; column += kBlock) {
        const Pair* panel = column_panel(column) + k * kStep;
        const Pair* ahead = panel + dim_blocks_ * kStep;
        for (int64_t r = 0; r < count; r += kBlock, ahead += kAheadPairs) {
          float* c = s + r * sizes_.s_stride + (column - j);
          multiply_blocks(row_panel(r0 + r) + k * kStep, panel, steps, c, sizes_.s_stride, k > 0, ahead);
        }
      }
    }
  }

  void d_rows(Session& session, int64_t count, const float* w, int64_t j, int64_t end, float* d, bool accumulate) const {
    const int64_t steps = blocks(end - j);
    const auto split_w = [&](int64_t r, int64_t step) { return session.w.get() + (r / kBlock * kWeightSteps + step) * kStep; };
    for (int64_t r = 0; r < count; r += kBlock) {
      for (int64_t step = 0; step < steps; ++step) {
        split_along<Lie::row>(w + r * sizes_.s_stride + step * kBlock, sizes_.s_stride, count - r, in_vectors(end - j - step * kBlock),
                              split_w(r, step));
      }
    }
    for (int64_t k = 0; k < dim_blocks_; ++k) {
      for (int64_t step = 0; step < steps; step += kDepthSteps) {
        const Pair* panel = weight_panel(j, k) + step * kStep;
        const Pair* ahead = panel + kDepthSteps * kStep;
        for (int64_t r = 0; r < count; r += kBlock, ahead += kAheadPairs) {
          multiply_blocks(split_w(r, step), panel, std::min(kDepthSteps, steps - step), d + r * stride_ + k * kBlock, stride_,
                          accumulate || step > 0, ahead);
        }
      }
    }
  }

  void d_columns(Session& session, int64_t begin, int64_t end, int64_t count, const float*, const float* s, bool accumulate) {
    for (int64_t r = 0; r < count; r += kDepth) {
      const int64_t depth = std::min(kDepth, count - r);
      const int64_t steps = blocks(depth);
      for (int64_t first = 0; first < dim_blocks_; first += kDimTogether) {
        const int64_t last = std::min(first + kDimTogether, dim_blocks_);
        for (int64_t j = begin; j < end; j += kBlock) {
          for (int64_t step = 0; step < steps; ++step) {
            split_across<Lie::row>(s + (r + step * kBlock) * sizes_.s_stride + j, sizes_.s_stride, depth - step * kBlock,
                                   in_vectors(end - j), session.w.get() + step * kStep);
          }
          for (int64_t step = 0; step < steps; step += kDepthSteps) {
            for (int64_t k = first; k < last; ++k) {
              multiply_blocks(row_slice(r, k) + step * kStep, session.w.get() + step * kStep, std::min(kDepthSteps, steps - step),
                              d_block(j, k), kBlock, accumulate || r + step > 0, d_block(j + kBlock, k));
            }
          }
        }
      }
    }
  }

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
  Pair* column_panel(int64_t column) const { return columns_for_s_.get() + column / kBlock * dim_blocks_ * kStep; }
  // The block of W's depth that `column` begins or lies in, of components 32 k and on.
  Pair* weight_panel(int64_t column, int64_t k) const {
    const int64_t panel = column / kWeightBlock * dim_blocks_ + k;
    return columns_for_rows_.get() + (panel * kWeightSteps + column % kWeightBlock / kBlock) * kStep;
  }
  // 32 rows of the chunk over the whole depth of S.
  Pair* row_panel(int64_t row) const { return rows_for_s_.get() + row / kBlock * dim_blocks_ * kStep; }
  // Components 32 k and on, from a row of the chunk on.
  Pair* row_slice(int64_t row, int64_t k) const { return rows_for_columns_.get() + (k * chunk_blocks_ + row / kBlock) * kStep; }
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

// Whether the split of every number that matters is exact: finite, and neither so large nor so small that a part leaves the range.
inline bool splits_exactly(const PairLossCall& call, const Parallel& pool) {
  constexpr float kSmallest = 0x1p-60f, kLargest = 0x1p60f;
  const auto in_range = [](double x) { return x >= kSmallest && x <= kLargest; };
  const int64_t n = call.rows.rows;
  for (int64_t i = 0; call.temperature != nullptr && i < (call.temperature_per_row ? n : 1); ++i) {
    if (!(call.temperature[i] >= 0x1p-30 && call.temperature[i] <= 0x1p30)) return false;
  }
  for (int64_t i = 0; call.weights != nullptr && i < n; ++i) {
    if (call.weights[i] != 0 && !in_range(std::abs(call.weights[i]))) return false;
  }
  const auto rows_in_range = [&](const Matrix& m) {
    Buffer<char> good(m.rows);
    parallel_for(pool, m.rows, [&](int64_t begin, int64_t end) {
      Buffer<float> row(m.dim);
      for (int64_t i = begin; i < end; ++i) {
        copy_row(m, i, row.get());
        const float peak = largest_magnitude(row.get(), m.dim);
        good[i] = peak == 0 || in_range(peak);
      }
    });
    return std::find(good.get(), good.get() + m.rows, 0) == good.get() + m.rows;
  };
  return rows_in_range(call.rows) && (call.self || rows_in_range(call.columns));
}

}  // namespace pairloom::PAIRLOOM_ISA

#endif
