// The whole matrix of similarities, for those who want it.
#pragma once

#include "core/buffer.h"
#include "core/parallel.h"
#include "engine/similarity.h"

namespace pairloom::PAIRLOOM_ISA {

template <class T>
void pairwise_similarity(const PairwiseCall& call, const Parallel& pool) {
  constexpr int64_t kRows = 126;     // a whole number of tiles of either height
  constexpr int64_t kColumns = 256;  // a whole number of panels; the block of scores stays in the second-level cache
  const int64_t n = call.rows.rows;
  const int64_t m = call.columns.rows;
  const int64_t dim = call.rows.dim;
  if (n == 0 || m == 0) return;
  const int64_t stride = padded_stride<T>(dim);
  Buffer<T> panels(panel_count<T>(m) * kPanel<T> * dim);
  parallel_for(pool, panel_count<T>(m), [&](int64_t begin, int64_t end) {
    Buffer<T> scratch(kPanel<T> * stride);
    pack_rows(call.columns, call.similarity, begin * kPanel<T>, std::min(end * kPanel<T>, m) - begin * kPanel<T>, stride, scratch.get(),
              panels.get() + begin * kPanel<T> * dim);
  });
  parallel_for(pool, (n + kTileRows - 1) / kTileRows, [&](int64_t begin, int64_t end) {
    Buffer<T> rows(kRows * stride);
    Buffer<T> block(kRows * kColumns);
    const int64_t last = std::min(end * kTileRows, n);
    for (int64_t i = begin * kTileRows; i < last; i += kRows) {
      const int64_t count = std::min(kRows, last - i);
      for (int64_t r = 0; r < count; ++r) load_row(call.rows, i + r, normalizes(call.similarity), rows.get() + r * stride, stride);
      for (int64_t j = 0; j < m; j += kColumns) {
        const int64_t columns = std::min(kColumns, m - j);
        similarity_block(call.similarity, rows.get(), stride, count, panels.get() + j * dim, dim, panel_count<T>(columns), block.get(),
                         kColumns);
        for (int64_t r = 0; r < count; ++r) {
          std::copy(block.get() + r * kColumns, block.get() + r * kColumns + columns, static_cast<T*>(call.out) + (i + r) * m + j);
        }
      }
    }
  });
}

}  // namespace pairloom::PAIRLOOM_ISA
