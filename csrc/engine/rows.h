// Reading embeddings: any dtype and strides in, rows of the compute type out, normalised for cosine on the way; and packing rows
// into the panels that the tile GEMM reads.
#pragma once

#include <cmath>
#include <limits>

#include "core/simd.h"
#include "core/types.h"
#include "engine/gemm.h"

namespace pairloom::PAIRLOOM_ISA {

inline float from_half(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  float value;
  if (magnitude < 0x0400u) {  // zero and subnormal
    value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;
  } else {
    // Infinity and NaN keep their all-ones exponent, the rest is rebiased from 15 to 127.
    const uint32_t exponent_shift = magnitude >= 0x7c00u ? (255u - 31u) << 23 : (127u - 15u) << 23;
    const uint32_t wide = (magnitude << 13) + exponent_shift;
    std::memcpy(&value, &wide, sizeof value);
  }
  uint32_t signed_bits;
  std::memcpy(&signed_bits, &value, sizeof value);
  signed_bits |= sign;
  std::memcpy(&value, &signed_bits, sizeof value);
  return value;
}

inline float from_bfloat(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// Row `row` of m as T. Brings nearer what is read two calls later: row `later`.
template <class T>
void copy_row(const Matrix& m, int64_t row, T* out, int64_t later) {
  const auto copy = [&](auto* base, auto convert) {
    const auto* source = base + row * m.row_stride;
    if (m.column_stride == 1) {
      // Each row may begin a new page, which no prefetcher of the processor foresees.
      constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof *source);
      for (int64_t k = 0; k < m.dim; k += kLine) __builtin_prefetch(base + later * m.row_stride + k);
      for (int64_t k = 0; k < m.dim; ++k) out[k] = static_cast<T>(convert(source[k]));
    } else {
      for (int64_t k = 0; k < m.dim; ++k) out[k] = static_cast<T>(convert(source[k * m.column_stride]));
    }
  };
  const auto same = [](auto x) { return x; };
  switch (m.dtype) {
    case DType::f32:
      return copy(static_cast<const float*>(m.data), same);
    case DType::f64:
      return copy(static_cast<const double*>(m.data), same);
    case DType::f16:
      return copy(static_cast<const uint16_t*>(m.data), from_half);
    case DType::bf16:
      return copy(static_cast<const uint16_t*>(m.data), from_bfloat);
  }
}

// The same for rows that are read in order.
template <class T>
void copy_row(const Matrix& m, int64_t row, T* out) {
  copy_row(m, row, out, row + 2);
}

// In double, in an order that keeps eight sums in flight.
template <class T>
double sum_of_squares(const T* x, int64_t dim) {
  double sums[8] = {};
  int64_t k = 0;
  for (; k + 8 <= dim; k += 8) {
    for (int i = 0; i < 8; ++i) sums[i] += static_cast<double>(x[k + i]) * static_cast<double>(x[k + i]);
  }
  for (; k < dim; ++k) sums[0] += static_cast<double>(x[k]) * static_cast<double>(x[k]);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// 1 / |x|, or 0 for a row that counts as zero. Squares are summed in double, and scaled where even that overflows.
template <class T>
T inverse_norm(const T* x, int64_t dim) {
  const double norm = std::sqrt(sum_of_squares(x, dim));
  if (norm <= std::numeric_limits<double>::max()) return norm < kNormFloor ? T{0} : static_cast<T>(1.0 / norm);
  // The squares overflowed (or there is an infinity or a NaN, which the same steps pass on).
  double largest = 0;
  for (int64_t k = 0; k < dim; ++k) largest = std::max(largest, std::abs(static_cast<double>(x[k])));
  double sum = 0;
  for (int64_t k = 0; k < dim; ++k) sum += static_cast<double>(x[k]) / largest * (static_cast<double>(x[k]) / largest);
  return static_cast<T>(1.0 / largest / std::sqrt(sum));
}

// Row `row` of m times `factor`, padded with zeros to `padded`.
template <class T>
void scaled_row(const Matrix& m, int64_t row, T factor, T* out, int64_t padded) {
  copy_row(m, row, out);
  if (factor != T{1}) {
    for (int64_t k = 0; k < m.dim; ++k) out[k] *= factor;
  }
  for (int64_t k = m.dim; k < padded; ++k) out[k] = T{0};
}

// Row `row` of m as the similarity wants it, padded with zeros to `padded`. Returns the factor that was applied.
template <class T>
T load_row(const Matrix& m, int64_t row, bool normalize, T* out, int64_t padded) {
  scaled_row(m, row, T{1}, out, padded);
  if (!normalize) return T{1};
  // A zero row stays exactly zero even where an entry is tiny; NaN and infinity are not hidden by a factor of 0.
  const T factor = inverse_norm(out, m.dim);
  for (int64_t k = 0; k < m.dim; ++k) out[k] *= factor;
  return factor;
}

// Rows padded to whole vectors, plus an odd number of cache lines between them, so that walking down a column does not fall into
// one set of the cache.
template <class T>
int64_t padded_stride(int64_t length) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  const int64_t whole = (length + kPanel<T> - 1) / kPanel<T> * kPanel<T>;
  const int64_t lines = (whole + kLine - 1) / kLine;
  return (lines | 1) * kLine;
}

template <class T>
int64_t vector_width(int64_t length) {
  return (length + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
}

// Length in whole panels.
template <class T>
int64_t panel_width(int64_t length) {
  return (length + kPanel<T> - 1) / kPanel<T> * kPanel<T>;
}

template <class T>
int64_t panel_count(int64_t columns) {
  return (columns + kPanel<T> - 1) / kPanel<T>;
}

// `count` rows (at most kPanel), each times its factor if there are factors, become one panel: depth-major, missing rows zero.
template <class T>
void pack_panel(RowsOf<T> rows, int64_t count, int64_t dim, const T* factors, T* panel) {
  for (int64_t j = 0; j < kPanel<T>; j += kLanes<T>) {
    const vec<T> factor = factors == nullptr ? splat(T{1}) : load(factors + j);
    for (int64_t k = 0; k < dim; k += kLanes<T>) {
      vec<T> x[kLanes<T>];
      load_turned(RowsOf<T>{rows.data + j * rows.stride + k, rows.stride}, count - j, dim - k, x);
      unroll<kLanes<T>>([&](auto i) PAIRLOOM_LAMBDA_INLINE {
        if (k + i < dim) store(panel + (k + i) * kPanel<T> + j, x[i] * factor);
      });
    }
  }
}

// Rows [first, first + count) in the compute type: where they are stored if they can be read there, else copied to `scratch`, which
// has rows of `stride`.
template <class T>
RowsOf<T> rows_in_place(const Matrix& m, int64_t first, int64_t count, T* scratch, int64_t stride) {
  if (m.dtype == (sizeof(T) == 8 ? DType::f64 : DType::f32) && m.column_stride == 1) {
    return {static_cast<const T*>(m.data) + first * m.row_stride, m.row_stride};
  }
  for (int64_t r = 0; r < count; ++r) copy_row(m, first + r, scratch + r * stride);
  return {scratch, stride};
}

// What load_row multiplies rows by: kPanel factors, those from `count` on 0.
template <class T>
void row_factors(RowsOf<T> rows, int64_t count, int64_t dim, bool normalize, T* factors) {
  for (int64_t r = 0; r < kPanel<T>; ++r) {
    factors[r] = r >= count ? T{0} : normalize ? inverse_norm(rows.data + r * rows.stride, dim) : T{1};
  }
}

// The same of rows of m from `first` on, which may know them.
template <class T>
void row_factors(const Matrix& m, int64_t first, RowsOf<T> rows, int64_t count, bool normalize, T* factors) {
  if (!normalize || m.inverse_norms == nullptr) return row_factors(rows, count, m.dim, normalize, factors);
  std::copy_n(static_cast<const T*>(m.inverse_norms) + first, count, factors);
  std::fill(factors + count, factors + kPanel<T>, T{0});
}

}  // namespace pairloom::PAIRLOOM_ISA
