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
#include <type_traits>

#include "core/simd.h"

namespace pairloom::PAIRLOOM_ISA {

// The block of C in registers: rows by vectors of columns. 6 x 4 accumulators, 4 of B and a broadcast of A fill the 32 registers of
// AVX-512, 6 x 2 the 16 of AVX2 and SSE. Wide and low beats narrow and high (14 x 2) by a tenth: one broadcast feeds four
// multiply-adds, so fewer instructions have to be issued for the same arithmetic.
constexpr int kTileRows = 6;
#if defined(__AVX512F__)
constexpr int kTileVectors = 4;
#else
constexpr int kTileVectors = 2;
#endif
template <class T>
constexpr int64_t kPanel = kTileVectors * kLanes<T>;  // columns of a packed panel

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

// A pull of the row of C towards that of B: its place, `origin`, is subtracted before anything is added up, because the sum of W times B
// minus the sum of W times the place would cancel for rows that are close to each other and heavy.
struct Pull {
  template <class V, class T>
  static PAIRLOOM_INLINE void add(V& c, T a, V b, V origin) {
    c += a * (b - origin);
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
  bool accumulate;
  const T* origin = nullptr;  // stored like C; of Pull
};

template <class Combine, Order order, int kRows, int kVectors, class T>
void tile(const GemmOperands<T>& operands) {
  const GemmOperands<T> g = operands;
  vec<T> acc[kRows][kVectors];
  unroll<kRows>([&](auto m) PAIRLOOM_LAMBDA_INLINE {
    unroll<kVectors>([&](auto v) PAIRLOOM_LAMBDA_INLINE {
      __builtin_prefetch(g.c + m * g.c_stride + v * kLanes<T>, 1);  // C is touched only at the end, and is often far away
      acc[m][v] = vec<T>{};
    });
  });
  const T* a = g.a;
  const T* b = g.b;
  for (int64_t k = 0; k < g.depth; ++k) {
    vec<T> bv[kVectors];
    // B comes from the second-level cache; asked for a few steps ahead it is there in time (3 % of a whole loss).
    unroll<kVectors>([&](auto v) PAIRLOOM_LAMBDA_INLINE { __builtin_prefetch(b + 8 * g.b_stride + v * kLanes<T>); });
    unroll<kVectors>([&](auto v) PAIRLOOM_LAMBDA_INLINE { bv[v] = load(b + v * kLanes<T>); });
    unroll<kRows>([&](auto m) PAIRLOOM_LAMBDA_INLINE {
      const vec<T> am = splat(order == Order::rows ? a[m * g.a_stride] : a[m]);
      unroll<kVectors>([&](auto v) PAIRLOOM_LAMBDA_INLINE {
        if constexpr (std::is_same_v<Combine, Pull>) {
          Pull::add(acc[m][v], am, bv[v], load(g.origin + m * g.c_stride + v * kLanes<T>));
        } else {
          Combine::add(acc[m][v], am, bv[v]);
        }
      });
    });
    a += order == Order::rows ? 1 : g.a_stride;
    b += g.b_stride;
  }
  unroll<kRows>([&](auto m) PAIRLOOM_LAMBDA_INLINE {
    T* c = g.c + m * g.c_stride;
    unroll<kVectors>([&](auto v) PAIRLOOM_LAMBDA_INLINE {
      if (g.accumulate) acc[m][v] += load(c + v * kLanes<T>);
      store(c + v * kLanes<T>, acc[m][v]);
    });
  });
}

// `rows` rows of C, as tiles of 6, 4, 2 and 1.
template <class Combine, Order order, int kVectors, class T>
void strip(GemmOperands<T> g, int64_t rows) {
  const auto step = [&](int64_t n) {
    g.a += order == Order::rows ? n * g.a_stride : n;
    g.c += n * g.c_stride;
    if constexpr (std::is_same_v<Combine, Pull>) g.origin += n * g.c_stride;
    rows -= n;
  };
  for (; rows >= kTileRows; step(kTileRows)) tile<Combine, order, kTileRows, kVectors>(g);
  for (; rows >= 4; step(4)) tile<Combine, order, 4, kVectors>(g);
  for (; rows >= 2; step(2)) tile<Combine, order, 2, kVectors>(g);
  for (; rows >= 1; step(1)) tile<Combine, order, 1, kVectors>(g);
}

// Depth steps per pass over a panel, which stays in the nearer caches while tiles pass by.
constexpr int64_t kDepthBlock = 256;

// Rows of numbers, `stride` apart.
template <class T>
struct RowsOf {
  const T* data;
  int64_t stride;
};

// kLanes of the rows, kLanes numbers of each, turned: x[k] holds number k of every row. `count` rows are there, the others are 0; of
// their numbers `width` are there, of which the others say nothing.
template <class T>
PAIRLOOM_INLINE void load_turned(RowsOf<T> rows, int64_t count, int64_t width, vec<T> (&x)[kLanes<T>]) {
  if (count >= kLanes<T> && width >= kLanes<T>) {
    unroll<kLanes<T>>([&](auto i) PAIRLOOM_LAMBDA_INLINE {
      // The rows after these: many short steps in as many rows are not what hardware sees coming.
      __builtin_prefetch(rows.data + (i + kLanes<T>)*rows.stride);
      x[i] = load(rows.data + i * rows.stride);
    });
  } else {
    for (int64_t i = 0; i < kLanes<T>; ++i) {
      x[i] = vec<T>{};
      if (i < count) std::memcpy(&x[i], rows.data + i * rows.stride, static_cast<size_t>(std::min<int64_t>(width, kLanes<T>)) * sizeof(T));
    }
  }
  transpose<T>(x);
}

// C (kRows x kLanes) = A (kRows x depth) times `count` rows of B where they are stored, each times its factor. For the few rows of A
// that fit in registers beside the turned rows of B: a panel that is read only once is not worth its way through the caches.
// Each number is the one that gemm_packed finds.
template <class Combine, int kRows, class T>
void tile_of_rows(const T* a, int64_t a_stride, RowsOf<T> b, int64_t count, vec<T> factor, int64_t depth, T* c, int64_t c_stride) {
  for (int64_t block = 0; block < depth; block += kDepthBlock) {
    const int64_t end = std::min(block + kDepthBlock, depth);
    vec<T> acc[kRows] = {};
    for (int64_t k = block; k < end; k += kLanes<T>) {
      vec<T> x[kLanes<T>];
      load_turned(RowsOf<T>{b.data + k, b.stride}, count, end - k, x);
      unroll<kLanes<T>>([&](auto i) PAIRLOOM_LAMBDA_INLINE {
        if (k + i >= end) return;
        const vec<T> column = x[i] * factor;
        unroll<kRows>([&](auto m) PAIRLOOM_LAMBDA_INLINE { Combine::add(acc[m], splat(a[m * a_stride + k + i]), column); });
      });
    }
    unroll<kRows>([&](auto m) PAIRLOOM_LAMBDA_INLINE {
      if (block > 0) acc[m] += load(c + m * c_stride);
      store(c + m * c_stride, acc[m]);
    });
  }
}

// The same for any number of rows of A up to kMost.
template <class Combine, int kMost, class T>
void few_of_rows(const T* a, int64_t a_stride, int64_t rows, RowsOf<T> b, int64_t count, vec<T> factor, int64_t depth, T* c,
                 int64_t c_stride) {
  if (rows == kMost) return tile_of_rows<Combine, kMost>(a, a_stride, b, count, factor, depth, c, c_stride);
  if constexpr (kMost > 1) few_of_rows<Combine, kMost - 1>(a, a_stride, rows, b, count, factor, depth, c, c_stride);
}

// C (rows x panels * kPanel) = A (rows x depth, by rows) times packed panels of B; see pack_panel in engine/rows.h.
template <class Combine, class T>
void gemm_packed(const T* a, int64_t a_stride, const T* panels, int64_t depth, int64_t panel_count, T* c, int64_t c_stride, int64_t rows) {
  for (int64_t k = 0; k < depth; k += kDepthBlock) {
    const int64_t block = std::min(kDepthBlock, depth - k);
    for (int64_t p = 0; p < panel_count; ++p) {
      const T* panel = panels + (p * depth + k) * kPanel<T>;
      strip<Combine, Order::rows, kTileVectors>(
          GemmOperands<T>{a + k, a_stride, panel, kPanel<T>, c + p * kPanel<T>, c_stride, block, k > 0}, rows);
    }
  }
}

// A depth x width operand B in slices of kPanel columns: element (k, j) at data[(j / kPanel) * slice + k * stride + j % kPanel].
template <class T>
struct Slices {
  const T* data;
  int64_t slice;
  int64_t stride;
};

// C (rows x width) (+)= A times B. `width` is a whole number of vectors, to which B and C are padded. `rows` should be few enough
// for their A to stay in the second-level cache while the slices of B pass by. `origin` is that of Pull.
template <class Combine, Order order, class T>
void gemm_sliced(const T* a, int64_t a_stride, Slices<T> b, T* c, int64_t c_stride, int64_t rows, int64_t depth, int64_t width,
                 bool accumulate, const T* origin = nullptr) {
  for (int64_t j = 0; j < width;) {
    const T* slice = b.data + j / kPanel<T> * b.slice + j % kPanel<T>;
    GemmOperands<T> g{a, a_stride, slice, b.stride, c + j, c_stride, depth, accumulate};
    if constexpr (std::is_same_v<Combine, Pull>) g.origin = origin + j;
    const int64_t left = (width - j) / kLanes<T>;
    const int vectors = left >= kTileVectors ? kTileVectors : left >= 2 ? 2 : 1;
    if (vectors == kTileVectors) {
      strip<Combine, order, kTileVectors>(g, rows);
    } else if (vectors == 2) {
      strip<Combine, order, 2>(g, rows);
    } else {
      strip<Combine, order, 1>(g, rows);
    }
    j += vectors * kLanes<T>;
  }
}

}  // namespace pairloom::PAIRLOOM_ISA
