// Similarity matrix and the processor's limit at one instruction-set level.
#include "cpu/level.h"
#include "engine/fma_rate.h"
#include "engine/pairwise.h"

namespace pairloom::PAIRLOOM_ISA {

void pairwise_f32(const PairwiseCall& call, const Parallel& pool) { pairwise_similarity<float>(call, pool); }
void pairwise_f64(const PairwiseCall& call, const Parallel& pool) { pairwise_similarity<double>(call, pool); }
double fma_rate_f32(double seconds) { return fma_rate(seconds); }

}  // namespace pairloom::PAIRLOOM_ISA
