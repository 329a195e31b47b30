// The tile GEMM: C (+)= sum over depth of combine(A, B), with a block of C kept in registers over the whole depth.
//
// One micro-kernel serves every product of the engine. A is read by broadcast and may be stored by rows or transposed; B is read by
// vectors, so its `width` consecutive columns must be contiguous for each depth step: either a panel packed for that (stride =
// panel width) or plain rows (stride = row length).
//
// Each element of C is one accumulator that runs through the depth in order, whatever the tile shape around it: a score does not
// depend on how many rows were asked for, nor on where its tile began.
#pragma once

#include <algorithm>

#include "core/simd.h"

namespace pairloom::PAIRLOOM_ISA {

// Rows of C in registers at once. With two vectors of columns: 14 x 2 accumulators + 2 of B + 1 broadcast fill the 32 registers of
// AVX-512; 6 x 2 the 16 registers of AVX2 and SSE.
#if defined(__AVX512F__)
constexpr int kTileRows = 14;
#else
constexpr int kTileRows = 6;
#endif
constexpr int kTileVectors = 2;
template <class T>
constexpr int64_t kPanel = kTileVectors* kLanes<T>;  // columns of a packed panel

// What one depth step adds.
struct Dot {
  template <class V, class T>
  static PAIRLOOM_INLINE void add(V& c, T a, V b) {
    c += a * b;
  }
};
struct SquaredDifference {
  template <class V, class T>
  static PAIRLOOM_INLINE void add(V& c, T a, V b) {
    const V d = a - b;
    c += d * d;
  }
};

// How the A operand is stored: element (m, k) at a[m * stride + k] or at a[k * stride + m].
enum class Order { rows, transposed };

template <class T>
struct GemmOperands {
  const T* a;
  int64_t a_stride;
  const T* b;
  int64_t b_stride;
  T* c;
  int64_t c_stride;
  int64_t depth;
};

template <class Combine, Order order, int kRows, int kVectors, bool kAccumulate, class T>
void tile(const GemmOperands<T>& g) {
  vec<T> acc[kRows][kVectors];
  for (int m = 0; m < kRows; ++m) {
    for (int v = 0; v < kVectors; ++v) {
      acc[m][v] = kAccumulate ? load(g.c + m * g.c_stride + v * kLanes<T>) : vec<T>{};
    }
  }
  const T* a = g.a;
  const T* b = g.b;
  for (int64_t k = 0; k < g.depth; ++k) {
    vec<T> bv[kVectors];
    for (int v = 0; v < kVectors; ++v) bv[v] = load(b + v * kLanes<T>);
    for (int m = 0; m < kRows; ++m) {
      const vec<T> am = splat(order == Order::rows ? a[m * g.a_stride] : a[m]);
      for (int v = 0; v < kVectors; ++v) Combine::add(acc[m][v], am, bv[v]);
    }
    a += order == Order::rows ? 1 : g.a_stride;
    b += g.b_stride;
  }
  for (int m = 0; m < kRows; ++m) {
    for (int v = 0; v < kVectors; ++v) store(g.c + m * g.c_stride + v * kLanes<T>, acc[m][v]);
  }
}

// `rows` rows of C, as tiles of 14 (6), 8, 4, 2 and 1.
template <class Combine, Order order, int kVectors, bool kAccumulate, class T>
void strip(GemmOperands<T> g, int64_t rows) {
  const auto step = [&](int64_t n) {
    g.a += order == Order::rows ? n * g.a_stride : n;
    g.c += n * g.c_stride;
    rows -= n;
  };
  for (; rows >= kTileRows; step(kTileRows)) tile<Combine, order, kTileRows, kVectors, kAccumulate>(g);
  if constexpr (kTileRows > 8) {
    for (; rows >= 8; step(8)) tile<Combine, order, 8, kVectors, kAccumulate>(g);
  }
  for (; rows >= 4; step(4)) tile<Combine, order, 4, kVectors, kAccumulate>(g);
  for (; rows >= 2; step(2)) tile<Combine, order, 2, kVectors, kAccumulate>(g);
  for (; rows >= 1; step(1)) tile<Combine, order, 1, kVectors, kAccumulate>(g);
}

template <class Combine, Order order, int kVectors, class T>
void strip(const GemmOperands<T>& g, int64_t rows, bool accumulate) {
  if (accumulate) {
    strip<Combine, order, kVectors, true>(g, rows);
  } else {
    strip<Combine, order, kVectors, false>(g, rows);
  }
}

// Depth steps per pass over a panel: 256 x 32 floats of B are 32 KiB, which stay in the first-level cache while tiles pass by.
constexpr int64_t kDepthBlock = 256;

// C (rows x panels * kPanel) = A (rows x depth, by rows) times packed panels of B; see pack_panel in engine/rows.h.
template <class Combine, class T>
void gemm_packed(const T* a, int64_t a_stride, const T* panels, int64_t depth, int64_t panel_count, T* c, int64_t c_stride,
                 int64_t rows) {
  for (int64_t k = 0; k < depth; k += kDepthBlock) {
    const int64_t block = std::min(kDepthBlock, depth - k);
    for (int64_t p = 0; p < panel_count; ++p) {
      const T* panel = panels + (p * depth + k) * kPanel<T>;
      strip<Combine, Order::rows, kTileVectors>(
          GemmOperands<T>{a + k, a_stride, panel, kPanel<T>, c + p * kPanel<T>, c_stride, block}, rows, k > 0);
    }
  }
}

// C (rows x width) (+)= A times B, with B by plain rows. `width` is a whole number of vectors, and B and C are padded to it.
template <Order order, class T>
void gemm_rows(const T* a, int64_t a_stride, const T* b, int64_t b_stride, T* c, int64_t c_stride, int64_t rows, int64_t depth,
               int64_t width, bool accumulate) {
  constexpr int64_t kRowBlock = kTileRows;
  for (int64_t r = 0; r < rows; r += kRowBlock) {  // a group of A rows stays in cache while the panels of B pass by
    const int64_t group = std::min(kRowBlock, rows - r);
    const T* ar = a + (order == Order::rows ? r * a_stride : r);
    int64_t j = 0;
    for (; j + kPanel<T> <= width; j += kPanel<T>) {
      strip<Dot, order, kTileVectors>(GemmOperands<T>{ar, a_stride, b + j, b_stride, c + r * c_stride + j, c_stride, depth}, group,
                                      accumulate);
    }
    if (j < width) {
      strip<Dot, order, 1>(GemmOperands<T>{ar, a_stride, b + j, b_stride, c + r * c_stride + j, c_stride, depth}, group, accumulate);
    }
  }
}

}  // namespace pairloom::PAIRLOOM_ISA
