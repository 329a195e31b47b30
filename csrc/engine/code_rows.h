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
  float norm;          // at least |x|
  float inverse_norm;  // 0 for a row that counts as zero
  int32_t sum;         // of int8 codes
};

template <class Code>
constexpr int64_t kCodeStride = 64 / static_cast<int64_t>(sizeof(Code));  // rows of codes are whole cache lines

using Ints = VectorOf<int32_t>::type;
typedef int8_t CodeBytes __attribute__((vector_size(kVectorBytes / 4)));  // one for each lane of Ints

// What encoding found: a bound of |x - scale codes|, and the sum of int8 codes.
struct Encoding {
  double residual;
  int32_t sum;
};

// `count` numbers (more count as a whole vector) as float32, zeros behind them.
template <class T>
PAIRLOOM_INLINE vec<float> load_floats(const T* x, int64_t count) {
  if constexpr (sizeof(T) == sizeof(float)) {
    if (count >= kLanes<float>) return load(x);
  }
  float numbers[kLanes<float>] = {};
  for (int64_t k = 0; k < std::min<int64_t>(count, kLanes<float>); ++k) numbers[k] = static_cast<float>(x[k]);
  return load(numbers);
}

// To the nearest codes. The error is measured in steps: there nothing becomes too small for float32. `x / scale` is off by four roundings.
template <class T>
Encoding encode(const T* x, int64_t dim, double norm, float scale, int8_t* codes) {
  const float inverse = 1.0f / scale;
  vec<float> squares{};
  Ints sums{};
  for (int64_t k = 0; k < dim; k += kLanes<float>) {
    vec<float> steps = load_floats(x + k, dim - k) * inverse;
    __asm__("" : "+m"(steps));  // rounded here: fused with the addition below, codes would depend on the instruction set
    // A little above 127.5 is cut off to 127 as well.
    const Ints code = __builtin_convertvector(steps + (steps < 0.0f ? splat(-0.5f) : splat(0.5f)), Ints);
    const vec<float> error = steps - __builtin_convertvector(code, vec<float>);
    squares += error * error;
    sums += code;
    const CodeBytes bytes = __builtin_convertvector(code, CodeBytes);
    std::memcpy(codes + k, &bytes, sizeof bytes);
  }
  double total = 0;
  for (int i = 0; i < kLanes<float>; ++i) total += static_cast<double>(squares[i]);
  const double roundings = (static_cast<double>(dim) + 64.0) * 0x1p-24;
  return {static_cast<double>(scale) * std::sqrt(total) * (1.0 + roundings) + 5e-7 * norm, sum_lanes<int32_t>(sums)};
}

// Rounded to bfloat16.
template <class T>
Encoding encode(const T* x, int64_t dim, double, float, uint16_t* codes) {
  double squares = 0;
  for (int64_t k = 0; k < dim; ++k) {
    const float number = static_cast<float>(x[k]);
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    codes[k] = static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    if ((codes[k] & 0x7f80u) == 0) codes[k] = 0;  // matrix units take subnormal numbers for 0
    const double r = static_cast<double>(x[k]) - static_cast<double>(from_bfloat(codes[k]));
    squares += r * r;
  }
  return {std::sqrt(squares), 0};
}

template <class T>
T largest_magnitude(const T* x, int64_t dim) {
  vec<T> best{};
  int64_t k = 0;
  for (; k + kLanes<T> <= dim; k += kLanes<T>) {
    const vec<T> v = load(x + k);
    best = larger(best, v < T{0} ? -v : v);
  }
  T largest = max_lanes<T>(best);
  for (; k < dim; ++k) largest = larger<T>(largest, x[k] < T{0} ? -x[k] : x[k]);
  return largest;
}

// The codes of one row of `dim` numbers, zeros behind them up to `stride`.
template <class T, class Code>
CodedRow code_row(const T* x, int64_t dim, int64_t stride, Code* codes) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  std::fill(codes, codes + stride, Code{0});
  const double norm = std::sqrt(sum_of_squares(x, dim));
  if (!(norm < kLargestNorm)) return {0.0f, infinity, infinity, 1.0f, 0};
  // A thread may take subnormal numbers for 0, and the one that searches later may not (or the other way round): neither changes a row by
  // more than this.
  const double unseen = std::sqrt(static_cast<double>(dim)) * static_cast<double>(std::numeric_limits<float>::min());
  const float norm_bound = static_cast<float>((norm + unseen) * kRoundUp);
  const float inverse_norm = norm < kNormFloor ? 0.0f : static_cast<float>(1.0 / norm);
  const float scale = sizeof(Code) == 1 ? static_cast<float>(largest_magnitude(x, dim)) / 127.0f : 1.0f;
  if (scale < kSmallestScale) return {0.0f, norm_bound, norm_bound, inverse_norm, 0};
  const Encoding encoding = encode(x, dim, norm, scale, codes);
  return {scale, static_cast<float>((encoding.residual + unseen) * kRoundUp), norm_bound, inverse_norm, encoding.sum};
}

// What is stored of some rows beside their codes: an array for each kind.
struct Records {
  const float* first;
  int64_t stride;
  const float* operator[](CodeRecord which) const { return first + which * stride; }
};

inline void store_record(const CodedRow& coded, float* first, int64_t stride) {
  first[kScale * stride] = coded.scale;
  first[kResidual * stride] = coded.residual;
  first[kNorm * stride] = coded.norm;
  first[kInverseNorm * stride] = coded.inverse_norm;
  first[kCodeSum * stride] = static_cast<float>(coded.sum);
}

}  // namespace pairloom::PAIRLOOM_ISA
