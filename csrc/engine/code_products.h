// Products of coded rows: C (rows x 16 queries) += codes of rows times codes of queries; exact in int32 for int8, in float32 for bfloat16.
// One loop for all kinds of instruction: 32 bits of codes of a row, with the same of each query, are added to 32 bits of C.
//
// Rows are read as they are stored; queries are packed in panels of 16, a step of depth beside each other: the lanes are queries. What
// takes unsigned numbers on one side gets the queries plus 128; kOffset times the sum of a row's codes, put into C before, takes that away.
#pragma once

#include "core/buffer.h"
#include "core/types.h"
#include "engine/code_rows.h"
#include "engine/gemm.h"
#include "engine/matrix_unit.h"

namespace pairloom::PAIRLOOM_ISA {

constexpr int64_t kPanelQueries = 16;
constexpr int kPanelVectors = static_cast<int>(kPanelQueries) / kLanes<float>;
constexpr int64_t kCodeRows = 32;  // that a call takes at least, zeros at the end of a gallery

// Sums of integers.
struct IntegerSums {
  static PAIRLOOM_INLINE vec<float> values(Ints sums) { return __builtin_convertvector(sums, vec<float>); }
  static double value(int32_t sum) { return sum; }
};

// Steps of two int8 codes, widened to 16 bits: every processor.
struct PairSteps : IntegerSums {
  static constexpr int64_t kTogether = 2;
  static constexpr int32_t kOffset = 0;
  using Stored = int8_t;
  using Code = int16_t;
  static PAIRLOOM_INLINE Ints add(Ints c, Ints row, Ints queries) {
#if defined(__AVX512BW__)
    return c + reinterpret_cast<Ints>(_mm512_madd_epi16(reinterpret_cast<__m512i>(row), reinterpret_cast<__m512i>(queries)));
#elif defined(__AVX2__)
    return c + reinterpret_cast<Ints>(_mm256_madd_epi16(reinterpret_cast<__m256i>(row), reinterpret_cast<__m256i>(queries)));
#elif defined(__SSE2__)
    return c + reinterpret_cast<Ints>(_mm_madd_epi16(reinterpret_cast<__m128i>(row), reinterpret_cast<__m128i>(queries)));
#else
    return c + (row >> 16) * (queries >> 16) + ((row << 16) >> 16) * ((queries << 16) >> 16);
#endif
  }
};

#if defined(__AVX512F__)
// Steps of four codes, by AVX-512 VNNI. In assembly, because the level is not compiled for it: some of its processors lack it.
struct QuadSteps : IntegerSums {
  static constexpr int64_t kTogether = 4;
  static constexpr int32_t kOffset = -128;
  using Stored = int8_t;
  using Code = int8_t;
  static PAIRLOOM_INLINE Ints add(Ints c, Ints row, Ints queries) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(c) : "v"(queries), "v"(row));
    return c;
  }
};
#endif

// Steps of two bfloat16 codes, the upper halves of float32 numbers.
struct BfloatSteps {
  static constexpr int64_t kTogether = 2;
  static constexpr int32_t kOffset = 0;
  using Stored = uint16_t;
  using Code = uint16_t;
  static PAIRLOOM_INLINE vec<float> values(Ints bits) {
    vec<float> numbers;
    std::memcpy(&numbers, &bits, sizeof numbers);
    return numbers;
  }
  static double value(int32_t bits) {
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return static_cast<double>(number);
  }
  static PAIRLOOM_INLINE Ints add(Ints c, Ints row, Ints queries) {
    const Ints upper = Ints{} + static_cast<int32_t>(0xffff0000u);
    vec<float> sum = values(c);
    sum += values(row << 16) * values(queries << 16);
    sum += values(row & upper) * values(queries & upper);
    std::memcpy(&c, &sum, sizeof c);
    return c;
  }
};

// The packed queries of a panel: 32 bits of codes (`Steps::kTogether` of them) of each of 16 queries, then the next step.
template <class Steps>
void pack_query(const typename Steps::Stored* codes, int64_t stride, int64_t lane, int32_t* panel) {
  constexpr int64_t kTogether = Steps::kTogether;
  for (int64_t k = 0; k < stride; k += kTogether) {
    typename Steps::Code step[kTogether];
    for (int64_t i = 0; i < kTogether; ++i) step[i] = static_cast<typename Steps::Code>(codes[k + i] - Steps::kOffset);
    std::memcpy(panel + k / kTogether * kPanelQueries + lane, step, sizeof(int32_t));
  }
}

template <class Steps, int kRows, int kVectors>
void code_tile(const typename Steps::Code* rows, int64_t stride, const int32_t* const (&queries)[kVectors], int64_t depth, int32_t* c,
               int64_t c_stride) {
  Ints acc[kRows][kVectors];
  unroll<kRows>([&](auto r) PAIRLOOM_LAMBDA_INLINE {
    unroll<kVectors>([&](auto v) PAIRLOOM_LAMBDA_INLINE { acc[r][v] = load(c + r * c_stride + v * kLanes<float>); });
  });
  for (int64_t k = 0, at = 0; k < depth; k += Steps::kTogether, at += kPanelQueries) {
    Ints of_queries[kVectors];
    unroll<kVectors>([&](auto v) PAIRLOOM_LAMBDA_INLINE { of_queries[v] = load(queries[v] + at); });
    unroll<kRows>([&](auto r) PAIRLOOM_LAMBDA_INLINE {
      int32_t step;
      std::memcpy(&step, rows + r * stride + k, sizeof step);
      const Ints row = Ints{} + step;
      unroll<kVectors>([&](auto v) PAIRLOOM_LAMBDA_INLINE { acc[r][v] = Steps::add(acc[r][v], row, of_queries[v]); });
    });
  }
  unroll<kRows>([&](auto r) PAIRLOOM_LAMBDA_INLINE {
    unroll<kVectors>([&](auto v) PAIRLOOM_LAMBDA_INLINE { store<int32_t>(c + r * c_stride + v * kLanes<float>, acc[r][v]); });
  });
}

// A tile walks down the depth of several rows at once: too many short walks for the processor to foresee.
constexpr int64_t kAheadRows = 32;
template <class Code>
void bring_nearer(const Code* codes, int64_t count) {
  for (int64_t k = 0; k < count; k += kCodeStride<Code>) __builtin_prefetch(codes + k);
}

// C (`count` rows, a multiple of kCodeRows, by `panels` panels) += rows times queries.
template <class Steps>
struct VectorProducts {
  using Packing = Steps;
  using Code = typename Steps::Code;
  struct Session {};

  static void multiply(Session&, const Code* rows, int64_t stride, int64_t count, const int32_t* queries, int64_t panels, int64_t depth,
                       int32_t* c, int64_t c_stride) {
    // More loads than sums would starve the multipliers; 16 sums and what they read fit the registers of AVX-512, 8 those of the others.
    constexpr int kRows = kVectorBytes == 64 ? 8 : 4;
    const int64_t panel_size = depth / Steps::kTogether * kPanelQueries;
    const auto vector_at = [&](int64_t v) { return queries + v / kPanelVectors * panel_size + v % kPanelVectors * kLanes<float>; };
    const int64_t vectors = panels * kPanelVectors;
    for (int64_t v = 0; v < vectors; v += 2) {
      int32_t* out = c + v * kLanes<float>;
      for (int64_t r = 0; r < count; r += kRows) {
        if (v == 0) bring_nearer(rows + (r + kAheadRows) * stride, kRows * stride);
        if (v + 1 < vectors) {
          code_tile<Steps, kRows, 2>(rows + r * stride, stride, {vector_at(v), vector_at(v + 1)}, depth, out + r * c_stride, c_stride);
        } else {
          code_tile<Steps, kRows, 1>(rows + r * stride, stride, {vector_at(v)}, depth, out + r * c_stride, c_stride);
        }
      }
    }
  }
};

#if defined(__AMX_TILE__) && defined(__AMX_INT8__)
// On tiles of 16 x 64 bytes.
template <class Steps>
struct TileProducts {
  using Packing = Steps;
  using Code = typename Steps::Code;
  using Session = TileRegisters;

  static void multiply(Session&, const Code* rows, int64_t stride, int64_t count, const int32_t* queries, int64_t panels, int64_t depth,
                       int32_t* c, int64_t c_stride) {
    constexpr int64_t kStep = kCodeStride<Code>;  // codes of a tile's row
    constexpr int64_t kStepSize = kStep / Packing::kTogether * kPanelQueries;
    const int64_t stride_bytes = stride * static_cast<int64_t>(sizeof(Code));
#define PAIRLOOM_TILE_PRODUCT(c, a, b) \
  if constexpr (sizeof(Code) == 1) {   \
    _tile_dpbsud(c, a, b);             \
  } else {                             \
    _tile_dpbf16ps(c, a, b);           \
  }
    constexpr int64_t kRowBytes = kPanelQueries * static_cast<int64_t>(sizeof(int32_t));
    const int64_t c_bytes = c_stride * static_cast<int64_t>(sizeof(int32_t));
    const int64_t panel_size = depth / Packing::kTogether * kPanelQueries;
    __asm__ volatile("" ::: "memory");  // the intrinsics do not tell the compiler what memory they read
    for (int64_t p = 0; p < panels; p += 2) {
      const bool both = p + 1 < panels;
      const int32_t* left = queries + p * panel_size;
      for (int64_t r = 0; r < count; r += kCodeRows) {
        int32_t* upper = c + r * c_stride + p * kPanelQueries;
        int32_t* lower = upper + 16 * c_stride;
        _tile_loadd(0, upper, c_bytes);
        _tile_loadd(2, lower, c_bytes);
        if (both) {
          _tile_loadd(1, upper + kPanelQueries, c_bytes);
          _tile_loadd(3, lower + kPanelQueries, c_bytes);
        }
        for (int64_t k = 0; k < depth; k += kStep) {
          const Code* a = rows + r * stride + k;
          const int32_t* b = left + k / kStep * kStepSize;
          _tile_loadd(4, a, stride_bytes);
          _tile_loadd(5, a + 16 * stride, stride_bytes);
          _tile_loadd(6, b, kRowBytes);
          PAIRLOOM_TILE_PRODUCT(0, 4, 6);
          PAIRLOOM_TILE_PRODUCT(2, 5, 6);
          if (both) {
            _tile_loadd(7, b + panel_size, kRowBytes);
            PAIRLOOM_TILE_PRODUCT(1, 4, 7);
            PAIRLOOM_TILE_PRODUCT(3, 5, 7);
          }
        }
        _tile_stored(0, upper, c_bytes);
        _tile_stored(2, lower, c_bytes);
        if (both) {
          _tile_stored(1, upper + kPanelQueries, c_bytes);
          _tile_stored(3, lower + kPanelQueries, c_bytes);
        }
      }
    }
#undef PAIRLOOM_TILE_PRODUCT
    __asm__ volatile("" ::: "memory");
  }
};
#endif

}  // namespace pairloom::PAIRLOOM_ISA
