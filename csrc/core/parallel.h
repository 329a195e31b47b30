// parallel_for over a lent thread pool (core/types.h): f(begin, end) on disjoint ranges of [0, count).
#pragma once

#include "core/simd.h"
#include "core/types.h"

namespace pairloom::PAIRLOOM_ISA {

template <class F>
void parallel_for(const Parallel& pool, int64_t count, const F& f) {
  if (count <= 0) return;
  pool.run(
      count, [](void* context, int64_t begin, int64_t end) { (*static_cast<const F*>(context))(begin, end); },
      const_cast<void*>(static_cast<const void*>(&f)));
}

}  // namespace pairloom::PAIRLOOM_ISA
