// Rows in few bits, and what is certain about the error: x = scale * codes + r with |r| <= residual. int8 with one symmetric scale a row,
// or bfloat16 with scale 1.
//
// A row whose norm is not below 1e18 (infinity and NaN too) has no codes and an infinite residual: nothing is certain about it.
#pragma once

#include "engine/rows.h"

namespace pairloom::PAIRLOOM_ISA {

constexpr double kLargestNorm = 1e18;     // squares and products of two are far from overflow
constexpr float kSmallestScale = 1e-30f;  // below, the row is all residual
constexpr double kRoundUp = 1.0 + 1e-6;   // float32 rounds by 6e-8

struct CodedRow {
  float scale;
  float residual;
  float norm;   // at least |x|
  int32_t sum;  // of int8 codes
};

template <class Code>
constexpr int64_t kCodeStride = 64 / static_cast<int64_t>(sizeof(Code));  // rows of codes are whole cache lines

// A code, and the number it stands for.
inline double encode(float steps, int8_t& code) {
  code = static_cast<int8_t>(steps + (steps < 0.0f ? -0.5f : 0.5f));  // to nearest; a little above 127 is cut off
  return code;
}
inline double encode(float x, uint16_t& code) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  code = static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  if ((code & 0x7f80u) == 0) code = 0;  // matrix units take subnormal numbers for 0
  return static_cast<double>(from_bfloat(code));
}

// The codes of one row of `dim` numbers, zeros behind them up to `stride`.
template <class T, class Code>
CodedRow code_row(const T* x, int64_t dim, int64_t stride, Code* codes) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr bool kScaled = sizeof(Code) == 1;
  std::fill(codes, codes + stride, Code{0});
  const double norm = std::sqrt(sum_of_squares(x, dim));
  if (!(norm < kLargestNorm)) return {0.0f, infinity, infinity, 0};
  T largest = 0;
  for (int64_t k = 0; k < dim; ++k) largest = std::max<T>(largest, x[k] < T{0} ? -x[k] : x[k]);
  const float scale = kScaled ? static_cast<float>(largest) / 127.0f : 1.0f;
  // A thread may take subnormal numbers for 0, and the one that searches later may not (or the other way round): neither changes a row by
  // more than this.
  const double unseen = std::sqrt(static_cast<double>(dim)) * static_cast<double>(std::numeric_limits<float>::min());
  const float norm_bound = static_cast<float>((norm + unseen) * kRoundUp);
  if (scale < kSmallestScale) return {0.0f, norm_bound, norm_bound, 0};
  const float inverse = 1.0f / scale;
  int32_t sum = 0;
  double squares = 0;
  for (int64_t k = 0; k < dim; ++k) {
    const double value = encode(static_cast<float>(x[k]) * inverse, codes[k]);
    if (kScaled) sum += codes[k];
    const double r = static_cast<double>(x[k]) - static_cast<double>(scale) * value;
    squares += r * r;
  }
  return {scale, static_cast<float>((std::sqrt(squares) + unseen) * kRoundUp), norm_bound, sum};
}

}  // namespace pairloom::PAIRLOOM_ISA
