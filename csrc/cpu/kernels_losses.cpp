// The losses of one instruction-set level, and its kernel table.
#include "cpu/kernels.h"
#include "cpu/level.h"
#include "engine/pair_loss.h"
#include "engine/split_products.h"
#include "rules/info_nce.h"
#include "rules/multi_similarity.h"
#include "rules/sup_con.h"

namespace pairloom::PAIRLOOM_ISA {
namespace {

template <template <class> class Rule, class T, class Call>
void run(const Call& call, const Parallel& pool) {
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
  if constexpr (sizeof(T) == sizeof(float)) {
    if (splits_exactly(call.pairs, pool)) {
      PairLoss<T, Rule<T>, SplitProducts>(call.pairs, Rule<T>(call), pool).run();
      return;
    }
  }
#endif
  PairLoss<T, Rule<T>, FmaProducts<T>>(call.pairs, Rule<T>(call), pool).run();
}

template <template <class> class Rule, class Call>
constexpr Kernel<Call> kLoss = {run<Rule, float, Call>, run<Rule, double, Call>};

}  // namespace

#define PAIRLOOM_STRING_(x) #x
#define PAIRLOOM_STRING(x) PAIRLOOM_STRING_(x)

extern const Kernels table;
const Kernels table = {
    .level = PAIRLOOM_STRING(PAIRLOOM_ISA),
    .info_nce = kLoss<InfoNce, InfoNceCall>,
    .multi_similarity = kLoss<MultiSimilarity, MultiSimilarityCall>,
    .sup_con = kLoss<SupCon, SupConCall>,
    .pairwise_similarity = {pairwise_f32, pairwise_f64},
    .topk = {topk_f32, topk_f64},
    .fma_rate = fma_rate_f32,
};

}  // namespace pairloom::PAIRLOOM_ISA
