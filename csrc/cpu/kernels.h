// The table of kernels that each instruction-set level provides. The same sources are compiled once per level (see cmake/Isa.cmake);
// dispatch.cpp picks one table per process.
#pragma once

#include "core/isa.h"
#include "core/types.h"

namespace pairloom {

struct Kernels {
  const char* level;
  void (*info_nce_f32)(const InfoNceCall&, const Parallel&);
  void (*info_nce_f64)(const InfoNceCall&, const Parallel&);
  void (*multi_similarity_f32)(const MultiSimilarityCall&, const Parallel&);
  void (*multi_similarity_f64)(const MultiSimilarityCall&, const Parallel&);
  void (*pairwise_f32)(const PairwiseCall&, const Parallel&);
  void (*pairwise_f64)(const PairwiseCall&, const Parallel&);
  void (*topk_f32)(const TopkCall&, const Parallel&);
  void (*topk_f64)(const TopkCall&, const Parallel&);
  double (*fma_rate)(double seconds);  // GFLOP/s of one thread on registers alone
};

PAIRLOOM_API const Kernels& kernels();  // the table of the level in use

}  // namespace pairloom
