// SIMD vectors by compiler vector extensions: one source, the width follows the level it is compiled for. Arithmetic, comparison and
// `mask ? a : b` are the compiler's own; here is only what it lacks. The same names work on plain scalars (core/scalar.h), which is how
// rules run in CUDA and in the naive driver.
#pragma once

#include <cstring>
#include <type_traits>
#include <utility>

#include "core/scalar.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define PAIRLOOM_LAMBDA_INLINE __attribute__((always_inline))

namespace pairloom::PAIRLOOM_ISA {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

// The integer type as wide as T: what comparisons of T produce, and what labels are stored as beside T.
template <class T>
struct LaneInt;
template <>
struct LaneInt<float> {
  using type = int32_t;
};
template <>
struct LaneInt<double> {
  using type = int64_t;
};
template <class T>
using lane_int = typename LaneInt<T>::type;

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};
template <class T>
using vec = typename VectorOf<T>::type;
template <class T>
using mask = vec<lane_int<T>>;
template <class T>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

template <class T>
PAIRLOOM_INLINE vec<T> load(const T* p) {
  vec<T> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
PAIRLOOM_INLINE void store(T* p, vec<T> v) {
  std::memcpy(p, &v, sizeof v);
}
template <class T>
PAIRLOOM_INLINE vec<T> splat(T x) {
  return x - vec<T>{};  // exact for every x (x + 0 would not be for -0.0), so compilers turn it into one broadcast
}
// 0, 1, 2, ... in the lanes.
template <class T>
PAIRLOOM_INLINE mask<T> lane_numbers() {
  mask<T> v{};
  for (int i = 0; i < kLanes<T>; ++i) v[i] = i;
  return v;
}

// f(0), ..., f(n - 1) with constants for arguments: what is indexed by them stays in registers, which a loop does not promise.
template <class F, int... i>
PAIRLOOM_INLINE void unroll(F&& f, std::integer_sequence<int, i...>) {
  (f(std::integral_constant<int, i>()), ...);
}
template <int n, class F>
PAIRLOOM_INLINE void unroll(F&& f) {
  unroll(f, std::make_integer_sequence<int, n>());
}

// Blocks of `g` numbers of a and b by turns: the even ones of both, or the odd ones.
template <class T, int g, bool odd, int... i>
PAIRLOOM_INLINE vec<T> blocks_by_turns(vec<T> a, vec<T> b, std::integer_sequence<int, i...>) {
#if defined(__clang__) || __GNUC__ >= 12
  return __builtin_shufflevector(a, b, ((i & g ? kLanes<T> + i - g : i) + (odd ? g : 0))...);
#else
  return __builtin_shuffle(a, b, mask<T>{((i & g ? kLanes<T> + i - g : i) + (odd ? g : 0))...});
#endif
}

// Rows become columns, in registers: blocks of 1, then 2, 4, ... numbers change places across the diagonal (Eklundh 1972).
template <class T, int g = 1>
PAIRLOOM_INLINE void transpose(vec<T> (&x)[kLanes<T>]) {
  if constexpr (g < kLanes<T>) {
    unroll<kLanes<T>>([&](auto i) PAIRLOOM_LAMBDA_INLINE {
      if constexpr ((i & g) == 0) {
        using Lanes = std::make_integer_sequence<int, kLanes<T>>;
        const vec<T> a = x[i], b = x[i + g];
        x[i] = blocks_by_turns<T, g, false>(a, b, Lanes());
        x[i + g] = blocks_by_turns<T, g, true>(a, b, Lanes());
      }
    });
    transpose<T, 2 * g>(x);
  }
}

// Bit i: lane i of a mask.
template <class M>
PAIRLOOM_INLINE uint32_t lane_bits(M m) {
  constexpr bool kWide = sizeof(m[0]) == 8;
#if defined(__AVX512F__) && defined(__AVX512DQ__)
  const __m512i all = reinterpret_cast<__m512i>(m);
  return kWide ? _mm512_movepi64_mask(all) : _mm512_movepi32_mask(all);
#elif defined(__AVX2__)
  const __m256i all = reinterpret_cast<__m256i>(m);
  return static_cast<uint32_t>(kWide ? _mm256_movemask_pd(_mm256_castsi256_pd(all)) : _mm256_movemask_ps(_mm256_castsi256_ps(all)));
#elif defined(__SSE2__)
  const __m128i all = reinterpret_cast<__m128i>(m);
  return static_cast<uint32_t>(kWide ? _mm_movemask_pd(_mm_castsi128_pd(all)) : _mm_movemask_ps(_mm_castsi128_ps(all)));
#else
  uint32_t bits = 0;
  for (int i = 0; i < static_cast<int>(sizeof(m) / sizeof(m[0])); ++i) bits |= static_cast<uint32_t>(m[i] & 1) << i;
  return bits;
#endif
}

template <class M>
PAIRLOOM_INLINE bool any(M m) {
  return lane_bits(m) != 0;
}

template <class T>
PAIRLOOM_INLINE T sum_lanes(vec<T> v) {
  T total = v[0];
  for (int i = 1; i < kLanes<T>; ++i) total += v[i];
  return total;
}
template <class T>
PAIRLOOM_INLINE T max_lanes(vec<T> v) {
  T best = v[0];
  for (int i = 1; i < kLanes<T>; ++i) best = larger<T>(best, v[i]);
  return best;
}
template <class T>
PAIRLOOM_INLINE T min_lanes(vec<T> v) {
  T best = v[0];
  for (int i = 1; i < kLanes<T>; ++i) best = smaller<T>(best, v[i]);
  return best;
}
template <class T>
PAIRLOOM_INLINE int64_t count_lanes(mask<T> m) {
  return -static_cast<int64_t>(sum_lanes<lane_int<T>>(m));
}

// e^x to about one unit in the last place: x = n ln 2 + r, e^x = 2^n e^r. Where the result would be subnormal it is 0, above 2^127.5
// (2^1023.5) it is infinity; NaN stays NaN.
PAIRLOOM_INLINE vec<float> exp(vec<float> x) {
  const vec<float> magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer and leaves that in the low bits
  vec<float> bounded = x < -87.336544f ? splat(-87.336544f) : x;
  bounded = bounded > 89.0f ? splat(89.0f) : bounded;  // n = 128, whose power of two is infinity
  const vec<float> shifted = bounded * 1.44269504f + magic;
  const vec<float> n = shifted - magic;
  vec<float> r = bounded - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  vec<float> p = splat(1.9875691500e-4f);  // minimax polynomial of Cephes expf on |r| <= ln(2)/2
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  vec<int32_t> bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits << 23) + (127 << 23);
  vec<float> power;
  std::memcpy(&power, &bits, sizeof power);
  return x < -87.336544f ? vec<float>{} : p * power;
}

// log(1 + x) for x in [0, 1], exact also where it is tiny: 2 atanh(z) with z = x / (2 + x) <= 1/3, as a series in z^2. NaN stays NaN.
template <class V>
PAIRLOOM_INLINE V log1p(V x) {
  constexpr int kTerms = sizeof(x[0]) == sizeof(float) ? 8 : 17;
  using T = std::remove_reference_t<decltype(x[0])>;
  const V z = x / (x + T{2});
  const V square = z * z;
  V sum = square * T{0} + T(1.0 / (2 * kTerms - 1));
  for (int k = 2 * kTerms - 3; k > 0; k -= 2) sum = sum * square + T(1.0 / k);
  return T{2} * z * sum;
}

PAIRLOOM_INLINE vec<double> exp(vec<double> x) {
  const vec<double> magic = splat(6755399441055744.0);  // 1.5 * 2^52
  vec<double> bounded = x < -708.39641853226408 ? splat(-708.39641853226408) : x;
  bounded = bounded > 710.0 ? splat(710.0) : bounded;
  const vec<double> shifted = bounded * 1.4426950408889634 + magic;
  const vec<double> n = shifted - magic;
  vec<double> r = bounded - n * 6.93147180369123816490e-01;
  r = r - n * 1.90821492927058770002e-10;
  constexpr double taylor[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
                               1.0 / 720,        1.0 / 120,       1.0 / 24,       1.0 / 6,       1.0 / 2,      1.0,         1.0};
  vec<double> p = splat(taylor[0]);
  for (int i = 1; i < 14; ++i) p = p * r + taylor[i];
  vec<int64_t> bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits << 52) + (int64_t{1023} << 52);
  vec<double> power;
  std::memcpy(&power, &bits, sizeof power);
  return x < -708.39641853226408 ? vec<double>{} : p * power;
}

}  // namespace pairloom::PAIRLOOM_ISA
