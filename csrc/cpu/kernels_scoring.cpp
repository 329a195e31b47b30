// Similarity matrix and the processor's limit at one instruction-set level.
#include "cpu/level.h"
#include "engine/fma_rate.h"
#include "engine/pairwise.h"

namespace pairloom::PAIRLOOM_ISA {

namespace {

template <class T>
void inverse_norms(const InverseNormsCall& call, const Parallel& pool) {
  parallel_for(pool, call.rows.rows, [&](int64_t begin, int64_t end) {
    Buffer<T> row(call.rows.dim);
    for (int64_t i = begin; i < end; ++i) {
      copy_row(call.rows, i, row.get());
      static_cast<T*>(call.out)[i] = inverse_norm(row.get(), call.rows.dim);
    }
  });
}

}  // namespace

void inverse_norms_f32(const InverseNormsCall& call, const Parallel& pool) { inverse_norms<float>(call, pool); }
void inverse_norms_f64(const InverseNormsCall& call, const Parallel& pool) { inverse_norms<double>(call, pool); }
void pairwise_f32(const PairwiseCall& call, const Parallel& pool) { pairwise_similarity<float>(call, pool); }
void pairwise_f64(const PairwiseCall& call, const Parallel& pool) { pairwise_similarity<double>(call, pool); }
double fma_rate_f32(double seconds) { return fma_rate(seconds); }

}  // namespace pairloom::PAIRLOOM_ISA
