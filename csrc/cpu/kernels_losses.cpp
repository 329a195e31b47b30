// The losses of one instruction-set level, and its kernel table.
#include "cpu/kernels.h"
#include "cpu/level.h"
#include "engine/pair_loss.h"
#include "rules/info_nce.h"
#include "rules/multi_similarity.h"

namespace pairloom::PAIRLOOM_ISA {
namespace {

template <class T>
void info_nce(const InfoNceCall& call, const Parallel& pool) {
  PairLoss<T, InfoNce<T>>(call.pairs, InfoNce<T>(), pool).run();
}

template <class T>
void multi_similarity(const MultiSimilarityCall& call, const Parallel& pool) {
  const MultiSimilarity<T> rule{static_cast<T>(call.alpha), static_cast<T>(call.beta), static_cast<T>(call.base),
                                static_cast<T>(call.epsilon), call.mining};
  PairLoss<T, MultiSimilarity<T>>(call.pairs, rule, pool).run();
}

}  // namespace

#define PAIRLOOM_STRING_(x) #x
#define PAIRLOOM_STRING(x) PAIRLOOM_STRING_(x)

extern const Kernels table;
const Kernels table = {
    .level = PAIRLOOM_STRING(PAIRLOOM_ISA),
    .info_nce_f32 = info_nce<float>,
    .info_nce_f64 = info_nce<double>,
    .multi_similarity_f32 = multi_similarity<float>,
    .multi_similarity_f64 = multi_similarity<double>,
    .pairwise_f32 = pairwise_f32,
    .pairwise_f64 = pairwise_f64,
    .topk_f32 = topk_f32,
    .topk_f64 = topk_f64,
    .fma_rate = fma_rate_f32,
};

}  // namespace pairloom::PAIRLOOM_ISA
