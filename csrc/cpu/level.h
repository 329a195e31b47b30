// Kernels of one instruction-set level that live in translation units of their own.
#pragma once

#include "core/simd.h"
#include "core/types.h"

namespace pairloom::PAIRLOOM_ISA {

void pairwise_f32(const PairwiseCall& call, const Parallel& pool);
void pairwise_f64(const PairwiseCall& call, const Parallel& pool);
void inverse_norms_f32(const InverseNormsCall& call, const Parallel& pool);
void inverse_norms_f64(const InverseNormsCall& call, const Parallel& pool);
void topk_f32(const TopkCall& call, const Parallel& pool);
void topk_f64(const TopkCall& call, const Parallel& pool);
void code_rows_f32(const CodeRowsCall& call, const Parallel& pool);
void code_rows_f64(const CodeRowsCall& call, const Parallel& pool);
void screened_topk_f32(const ScreenedTopkCall& call, const Parallel& pool);
void screened_topk_f64(const ScreenedTopkCall& call, const Parallel& pool);
void coded_topk(const CodedTopkCall& call, const Parallel& pool);
void mixtures_f32(const MixturesCall& call, const Parallel& pool);
void mixtures_f64(const MixturesCall& call, const Parallel& pool);
void mix_f32(const MixCall& call, const Parallel& pool);
void mix_f64(const MixCall& call, const Parallel& pool);
void mix_gradients_f32(const MixGradientsCall& call, const Parallel& pool);
void mix_gradients_f64(const MixGradientsCall& call, const Parallel& pool);
double fma_rate_f32(double seconds);

}  // namespace pairloom::PAIRLOOM_ISA
