// Rows as int8, one symmetric scale a row, and what is certain about the error: x = scale * codes + r with |r| <= residual.
//
// A row whose norm is not below 1e18 (infinity and NaN too) has no codes and an infinite residual: nothing is certain about it.
#pragma once

#include "engine/rows.h"

namespace pairloom::PAIRLOOM_ISA {

constexpr double kLargestNorm = 1e18;    // squares and products of two are far from overflow
constexpr float kSmallestScale = 1e-30f;  // below, the row is all residual
constexpr double kRoundUp = 1.0 + 1e-6;   // float32 rounds by 6e-8

struct CodedRow {
  float scale;
  float residual;
  float norm;  // at least |x|
  int32_t sum;  // of the codes
};

// The codes of one row of `dim` numbers, zeros behind them up to `stride`.
template <class T>
CodedRow code_row(const T* x, int64_t dim, int64_t stride, int8_t* codes) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  std::fill(codes, codes + stride, int8_t{0});
  const double norm = std::sqrt(sum_of_squares(x, dim));
  if (!(norm < kLargestNorm)) return {0.0f, infinity, infinity, 0};
  T largest = 0;
  for (int64_t k = 0; k < dim; ++k) largest = std::max<T>(largest, x[k] < T{0} ? -x[k] : x[k]);
  const float scale = static_cast<float>(largest) / 127.0f;
  const float norm_bound = static_cast<float>(norm * kRoundUp);
  if (scale < kSmallestScale) return {0.0f, norm_bound, norm_bound, 0};
  const float inverse = 1.0f / scale;
  int32_t sum = 0;
  double squares = 0;
  for (int64_t k = 0; k < dim; ++k) {
    const float steps = static_cast<float>(x[k]) * inverse;
    const int32_t code = static_cast<int32_t>(steps + (steps < 0.0f ? -0.5f : 0.5f));  // at most 127: 127 + some 1e-5 is cut off
    codes[k] = static_cast<int8_t>(code);
    sum += code;
    const double r = static_cast<double>(x[k]) - static_cast<double>(scale) * static_cast<double>(code);
    squares += r * r;
  }
  return {scale, static_cast<float>(std::sqrt(squares) * kRoundUp), norm_bound, sum};
}

}  // namespace pairloom::PAIRLOOM_ISA
