// The processor's own limit: multiply-adds on registers alone, in GFLOP/s of one thread. Benchmarks quote kernels as a fraction of it.
#pragma once

#include <chrono>

#include "engine/gemm.h"

namespace pairloom::PAIRLOOM_ISA {

inline double fma_rate(double seconds) {
  constexpr int kChains = 12;  // independent accumulators: more than latency times issue width, and they fit every register file
  constexpr int64_t kSteps = 100000;
  using clock = std::chrono::steady_clock;
  const auto elapsed = [](clock::time_point since) { return std::chrono::duration<double>(clock::now() - since).count(); };
  vec<float> acc[kChains] = {};
  const vec<float> a = splat(0.999f);
  const vec<float> b = splat(0.001f);
  double best = 0;
  for (const auto start = clock::now(); elapsed(start) < seconds;) {
    const auto begin = clock::now();
    for (int64_t i = 0; i < kSteps; ++i) {
      unroll<kChains>([&](auto j) PAIRLOOM_LAMBDA_INLINE { acc[j] = acc[j] * a + b; });
    }
    best = std::max(best, 2.0 * kChains * kLanes<float> * kSteps / elapsed(begin) * 1e-9);
  }
  float used = 0;
  for (const vec<float>& v : acc) used += v[0];
  volatile float keep = used;  // or the compiler drops the work
  (void)keep;
  return best;
}

}  // namespace pairloom::PAIRLOOM_ISA
