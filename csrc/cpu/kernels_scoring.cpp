// Similarity matrix, top-k and the processor's limit at one instruction-set level.
#include "cpu/level.h"
#include "engine/fma_rate.h"
#include "engine/pairwise.h"
#include "engine/topk.h"

namespace pairloom::PAIRLOOM_ISA {

void pairwise_f32(const PairwiseCall& call, const Parallel& pool) { pairwise_similarity<float>(call, pool); }
void pairwise_f64(const PairwiseCall& call, const Parallel& pool) { pairwise_similarity<double>(call, pool); }
void topk_f32(const TopkCall& call, const Parallel& pool) { Topk<float>(call, pool).run(); }
void topk_f64(const TopkCall& call, const Parallel& pool) { Topk<double>(call, pool).run(); }
double fma_rate_f32(double seconds) { return fma_rate(seconds); }

}  // namespace pairloom::PAIRLOOM_ISA
