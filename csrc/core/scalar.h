// What rules use on one value: the scalar half of the names that core/simd.h gives to vectors. All of it also compiles for the GPU.
#pragma once

#include <cmath>
#include <cstdint>

// Each level lives in a namespace of its own: an inline function compiled for AVX-512 must never become the copy that the linker
// keeps for every level.
#ifndef PAIRLOOM_ISA
#define PAIRLOOM_ISA baseline
#endif

#if defined(__CUDACC__)
#define PAIRLOOM_INLINE __host__ __device__ __forceinline__
#define PAIRLOOM_RULE __host__ __device__  // of a function that belongs to a rule
#else
#define PAIRLOOM_INLINE inline __attribute__((always_inline))
#define PAIRLOOM_RULE
#endif

namespace pairloom::PAIRLOOM_ISA {

PAIRLOOM_INLINE bool any(bool m) { return m; }

// The larger (smaller) of two; a NaN in `x` is passed over, so a NaN pair never decides an extreme. Sums see it later.
template <class V>
PAIRLOOM_INLINE V larger(V best, V x) {
  return x > best ? x : best;
}
template <class V>
PAIRLOOM_INLINE V smaller(V best, V x) {
  return x < best ? x : best;
}

PAIRLOOM_INLINE float exp(float x) { return std::exp(x); }
PAIRLOOM_INLINE double exp(double x) { return std::exp(x); }

}  // namespace pairloom::PAIRLOOM_ISA
