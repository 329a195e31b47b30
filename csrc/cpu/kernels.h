// The table of kernels that each instruction-set level provides. The same sources are compiled once per level (see cmake/Isa.cmake);
// dispatch.cpp picks one table per process.
#pragma once

#include "core/isa.h"
#include "core/types.h"

namespace pairloom {

// One kernel for each compute type.
template <class Call>
struct Kernel {
  void (*f32)(const Call&, const Parallel&);
  void (*f64)(const Call&, const Parallel&);
};

struct Kernels {
  const char* level;
  Kernel<InfoNceCall> info_nce;
  Kernel<ClipCall> clip;
  Kernel<MultiSimilarityCall> multi_similarity;
  Kernel<SupConCall> sup_con;
  Kernel<PairwiseCall> pairwise_similarity;
  Kernel<InverseNormsCall> inverse_norms;
  Kernel<TopkCall> topk;
  Kernel<CodeRowsCall> code_rows;
  Kernel<ScreenedTopkCall> screened_topk;
  void (*coded_topk)(const CodedTopkCall&, const Parallel&);  // of float32 queries
  Kernel<TripletMarginCall> triplet_margin;
  Kernel<MixturesCall> mixtures;
  Kernel<MixCall> mix;
  Kernel<MixGradientsCall> mix_gradients;
  double (*fma_rate)(double seconds);                            // GFLOP/s of one thread on registers alone
  double (*product_seconds)(int64_t n, int64_t m, int64_t dim);  // of one thread for float32 products, see engine/product_rate.h
};

PAIRLOOM_API const Kernels& kernels();  // the table of the level in use

}  // namespace pairloom
