// Products of matrices on a unit that multiplies tiles of bfloat16 (Intel AMX) and adds in float32, at the precision of their numbers.
//
// A float32 number is the exact sum of three bfloat16 numbers, high + middle + low: 8 of its 24 bits each. A product of two
// such sums has nine terms; the three smallest are below 2^-26 of it and are left out. The other six are exact in float32, where the
// unit adds them up, so the error is that of a float32 sum. Six passes on this unit take less than half the time of one in multiply-adds.
// A float16 number is the sum of two (11 bits), a bfloat16 number is one: four passes, and one.
//
// Holds for numbers whose low part is no subnormal number, which the unit takes for 0, and whose high part does not overflow:
// see splits_exactly() in engine/split_products.h.
#pragma once

#include "core/simd.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
#include <immintrin.h>

namespace pairloom::PAIRLOOM_ISA {

// Two bfloat16 that lie side by side in depth.
using Pair = uint32_t;

constexpr int64_t kBlock = 32;                  // rows and columns of C at a time (2 x 2 tiles), and depth of a step
constexpr int64_t kTile = 16;                   // rows of a tile, and pairs in each of its rows
constexpr int64_t kTilePairs = kTile * kTile;   // 1 KiB
constexpr int64_t kPartPairs = 2 * kTilePairs;  // both tiles of a part

// One operand of one step: a 32 x 32 block of numbers, split into parts, the highest first.
template <int parts>
constexpr int64_t kStep = parts * kPartPairs;

// Steps after which an operand should be used again: at most 24 KiB of it, half of a first-level cache.
template <int parts>
constexpr int64_t kDepthSteps = parts == 1 ? 8 : 4;
// What a call brings nearer: an eighth of such an operand, for each of its steps so many cache lines.
template <int parts>
constexpr int kAheadLines = 4 * parts;
template <int parts>
constexpr int64_t kAheadPairs = kDepthSteps<parts> * kAheadLines<parts> * 64 / static_cast<int64_t>(sizeof(Pair));

// While it lives, the tile registers of this thread are 16 rows of 64 bytes.
class TileRegisters {
 public:
  TileRegisters() {
    struct alignas(64) {
      uint8_t palette = 1;
      uint8_t start_row = 0;
      uint8_t reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } configuration;
    _tile_loadconfig(&configuration);
  }
  ~TileRegisters() { _tile_release(); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

// C (32 x 32) (+)= sum over `steps` of A B. An operand is a run of split blocks (kStep apart): A as packed by rows, B by pairs of rows.
// Registers 0-3 hold C, 4-5 A, 6-7 B; the order of the products lets each load serve the next one too, small terms first.
// `ahead` is what later calls will read in B's place: kAheadLines of it per step are brought to the second-level cache.
template <int a_parts, int b_parts>
__attribute__((noinline)) inline void multiply_blocks(const Pair* a, const Pair* b, int64_t steps, float* c, int64_t c_stride,
                                                      bool accumulate, const void* ahead) {
  constexpr int64_t kRowBytes = kTile * static_cast<int64_t>(sizeof(Pair));
  const int64_t c_bytes = c_stride * static_cast<int64_t>(sizeof(float));
  float* lower = c + kTile * c_stride;
  // The intrinsics do not tell the compiler what memory they read.
  __asm__ volatile("" ::: "memory");
  if (accumulate) {
    _tile_loadd(0, c, c_bytes);
    _tile_loadd(1, c + kTile, c_bytes);
    _tile_loadd(2, lower, c_bytes);
    _tile_loadd(3, lower + kTile, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const auto load_a = [&](int part) PAIRLOOM_LAMBDA_INLINE {
    _tile_loadd(4, a + part * kPartPairs, kRowBytes);
    _tile_loadd(5, a + part * kPartPairs + kTilePairs, kRowBytes);
  };
  const auto load_b = [&](int part) PAIRLOOM_LAMBDA_INLINE {
    _tile_loadd(6, b + part * kPartPairs, kRowBytes);
    _tile_loadd(7, b + part * kPartPairs + kTilePairs, kRowBytes);
  };
  const auto multiply = []() PAIRLOOM_LAMBDA_INLINE {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  };
  const char* line = static_cast<const char*>(ahead);
  const auto look_ahead = [&](int lines) PAIRLOOM_LAMBDA_INLINE {
    for (int i = 0; i < lines; ++i) __builtin_prefetch(line + i * 64, 0, 2);
    line += lines * 64;
  };
  for (int64_t step = 0; step < steps; ++step) {
    if constexpr (a_parts == 3 && b_parts == 3) {
      enum { high, middle, low };
      load_a(low);
      load_b(high);
      multiply();
      look_ahead(kAheadLines<b_parts> / 2);
      load_a(middle);
      multiply();
      load_b(middle);
      multiply();
      load_a(high);
      multiply();
      look_ahead(kAheadLines<b_parts> / 2);
      load_b(high);
      multiply();
      load_b(low);
      multiply();
    } else {
      static_assert(a_parts <= 2 && b_parts <= 2);
      load_a(a_parts - 1);
      load_b(b_parts - 1);
      multiply();
      look_ahead(kAheadLines<b_parts>);
      if constexpr (b_parts == 2) {
        load_b(0);
        multiply();
      }
      if constexpr (a_parts == 2) {
        load_a(0);
        multiply();
        if constexpr (b_parts == 2) {
          load_b(1);
          multiply();
        }
      }
    }
    a += kStep<a_parts>;
    b += kStep<b_parts>;
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + kTile, c_bytes);
  _tile_stored(2, lower, c_bytes);
  _tile_stored(3, lower + kTile, c_bytes);
  __asm__ volatile("" ::: "memory");
}

using Bits = VectorOf<uint32_t>::type;
static_assert(sizeof(Bits) == kTile * sizeof(Pair));

// The parts, each as the float32 number it is: bfloat16 is its upper half.
template <int count>
PAIRLOOM_INLINE void split(vec<float> x, Bits (&parts)[count]) {
  for (Bits& part : parts) {
    Bits bits;
    std::memcpy(&bits, &x, sizeof bits);
    part = (bits + 0x8000u) & 0xffff0000u;  // to nearest
    vec<float> rounded;
    std::memcpy(&rounded, &part, sizeof rounded);
    x -= rounded;  // exact
  }
}

// Pairs of neighbours in a row: the upper halves of 32 numbers in a row.
PAIRLOOM_INLINE Bits pairs_along(Bits left, Bits right) {
  typedef uint16_t Halves __attribute__((vector_size(sizeof(Bits))));
  Halves l, r;
  std::memcpy(&l, &left, sizeof l);
  std::memcpy(&r, &right, sizeof r);
  const Halves upper = __builtin_shufflevector(l, r, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43, 45,
                                               47, 49, 51, 53, 55, 57, 59, 61, 63);
  Bits pairs;
  std::memcpy(&pairs, &upper, sizeof pairs);
  return pairs;
}

// Pairs of numbers below each other, in two rows.
PAIRLOOM_INLINE Bits pairs_across(Bits upper, Bits lower) { return (upper >> 16) | lower; }

// How the pairs of one row of a block lie in a tile: as a row, or as a column.
enum class Lie { row, column };

template <Lie lie>
PAIRLOOM_INLINE void put(Pair* tile, int64_t i, Bits pairs) {
  if constexpr (lie == Lie::row) {
    std::memcpy(tile + i * kTile, &pairs, sizeof pairs);
  } else {
    for (int64_t k = 0; k < kTile; ++k) tile[k * kTile + i] = pairs[k];
  }
}

// `rows` x `columns` numbers at x become a split block, the rest of it zero: its rows are the rows of A (Lie::row) or the columns of
// B (Lie::column), the depth runs along them. `columns` is 16 or 32.
template <int parts, Lie lie>
void split_along(const float* x, int64_t stride, int64_t rows, int64_t columns, Pair* out) {
  for (int64_t r = 0; r < kBlock; ++r) {
    Bits left[parts] = {}, right[parts] = {};
    if (r < rows) {
      split(load(x + r * stride), left);
      if (columns > kTile) split(load(x + r * stride + kTile), right);
    }
    Pair* tile = out + r / kTile * kTilePairs;
    for (int part = 0; part < parts; ++part) put<lie>(tile + part * kPartPairs, r % kTile, pairs_along(left[part], right[part]));
  }
}

// The same where the depth runs across the rows: its columns are the columns of B (Lie::row) or the rows of A (Lie::column).
template <int parts, Lie lie>
void split_across(const float* x, int64_t stride, int64_t rows, int64_t columns, Pair* out) {
  constexpr int64_t kAhead = 8;  // rows of x may be far apart
  for (int64_t r = 0; r < kBlock; r += 2) {
    for (int64_t k = 0; k < kBlock; k += kTile) {
      Bits upper[parts] = {}, lower[parts] = {};
      if (k < columns) {
        if (r < rows) split(load(x + r * stride + k), upper);
        if (r + 1 < rows) split(load(x + (r + 1) * stride + k), lower);
        __builtin_prefetch(x + (r + kAhead) * stride + k);
        __builtin_prefetch(x + (r + 1 + kAhead) * stride + k);
      }
      Pair* tile = out + k / kTile * kTilePairs;
      for (int part = 0; part < parts; ++part) put<lie>(tile + part * kPartPairs, r / 2, pairs_across(upper[part], lower[part]));
    }
  }
}

}  // namespace pairloom::PAIRLOOM_ISA

#endif
