// What the tile products alone reach: S = rows columns^T of random numbers, packing included, in blocks that are thrown away. On one
// thread; returns the seconds it took. Benchmarks set it beside the processor's limit (engine/fma_rate.h).
#pragma once

#include <chrono>

#include "engine/fma_products.h"

namespace pairloom::PAIRLOOM_ISA {

template <class T, class Products>
double product_seconds(int64_t n, int64_t m, int64_t dim) {
  const int64_t stride = padded_stride<T>(dim), s_stride = padded_stride<T>(m);
  constexpr int64_t kBlock = Products::kBlockRows, kPack = Products::kColumnPack;
  Buffer<T> embeddings(std::max(kBlock, kPack) * stride), s(kBlock * s_stride);
  uint32_t state = 1;
  for (int64_t k = 0; k < std::max(kBlock, kPack) * stride; ++k) {
    state = state * 1664525u + 1013904223u;
    embeddings[k] = k % stride < dim ? static_cast<T>(state >> 8) * static_cast<T>(0x1p-23) - T{1} : T{0};
  }
  using clock = std::chrono::steady_clock;
  const auto begin = clock::now();
  Products products({.columns = m,
                     .dim = dim,
                     .chunk_rows = kBlock,
                     .s_stride = s_stride,
                     .wants_rows = false,
                     .wants_columns = false,
                     .distances = false});
  typename Products::Session session;
  for (int64_t j = 0; j < m; j += kPack) products.pack_columns(j, std::min(kPack, m - j), embeddings.get());
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t count = std::min(kBlock, n - i);
    products.pack_rows(0, count, embeddings.get());
    for (int64_t j = 0; j < m; j += Products::kColumnBlock) {
      products.similarities(0, count, embeddings.get(), j, std::min(j + Products::kColumnBlock, m), s.get() + j);
    }
  }
  return std::chrono::duration<double>(clock::now() - begin).count();
}

}  // namespace pairloom::PAIRLOOM_ISA
