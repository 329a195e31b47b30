// The losses of one instruction-set level, and its kernel table: which products and which way through the pairs serve a call.
#include "cpu/kernels.h"
#include "cpu/level.h"
#include "core/labels.h"
#include "engine/pair_loss.h"
#include "engine/pair_sweep.h"
#include "engine/split_products.h"
#include "engine/two_ways.h"
#include "rules/info_nce.h"
#include "rules/multi_similarity.h"
#include "rules/sup_con.h"

namespace pairloom::PAIRLOOM_ISA {
namespace {

template <class T, class Products>
using SupConSweep = PairSweep<T, SupCon<T>, Products>;

// Whether one batch against itself is better swept: enough rows for the half that is saved, and nothing asked that only the chunk
// loop counts.
template <class T, class Products>
bool sweeps(const PairLossCall& call, const Parallel& pool) {
  return call.self && call.stats == nullptr && call.rows.rows >= 3 * Products::kChunkRows && SupConSweep<T, Products>::fits(call, pool);
}

template <class T, class Products>
void run(const InfoNceCall& call, const Parallel& pool) {
  // With one positive, both losses are the same formula.
  if (call.pairs.label_words == 0 && sweeps<T, Products>(call.pairs, pool) && largest_class(call.pairs) <= 2) {
    SupConSweep<T, Products>(call.pairs, SupCon<T>(SupConCall{}), pool).run();
  } else {
    PairLoss<T, InfoNce<T>, Products>(call.pairs, InfoNce<T>(call), pool).run();
  }
}

template <class T, class Products>
void run(const SupConCall& call, const Parallel& pool) {
  if (sweeps<T, Products>(call.pairs, pool)) {
    SupConSweep<T, Products>(call.pairs, SupCon<T>(call), pool).run();
  } else {
    PairLoss<T, SupCon<T>, Products>(call.pairs, SupCon<T>(call), pool).run();
  }
}

template <class T, class Products>
void run(const ClipCall& call, const Parallel& pool) {
  const bool one_positive = !call.pairs.same_label_is_positive || call.pairs.row_labels == nullptr;
  if (one_positive && call.pairs.stats == nullptr && SupConSweep<T, Products>::fits(call.pairs, pool)) {
    SupConSweep<T, Products>(call.pairs, SupCon<T>(SupConCall{}), pool).run();
  } else {
    run_two_ways<T, InfoNce<T>, Products>(call.pairs, InfoNce<T>(InfoNceCall{}), pool);
  }
}

template <class T, class Products>
void run(const MultiSimilarityCall& call, const Parallel& pool) {
  PairLoss<T, MultiSimilarity<T>, Products>(call.pairs, MultiSimilarity<T>(call), pool).run();
}

template <class T, class Call>
void run_loss(const Call& call, const Parallel& pool) {
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
  if constexpr (sizeof(T) == sizeof(float)) {
    if (!is_distance(call.pairs.similarity) && splits_exactly(call.pairs, pool)) return run<T, SplitProducts>(call, pool);
  }
#endif
  run<T, FmaProducts<T>>(call, pool);
}

template <class Call>
constexpr Kernel<Call> kLoss = {run_loss<float, Call>, run_loss<double, Call>};

}  // namespace

#define PAIRLOOM_STRING_(x) #x
#define PAIRLOOM_STRING(x) PAIRLOOM_STRING_(x)

extern const Kernels table;
const Kernels table = {
    .level = PAIRLOOM_STRING(PAIRLOOM_ISA),
    .info_nce = kLoss<InfoNceCall>,
    .clip = kLoss<ClipCall>,
    .multi_similarity = kLoss<MultiSimilarityCall>,
    .sup_con = kLoss<SupConCall>,
    .pairwise_similarity = {pairwise_f32, pairwise_f64},
    .topk = {topk_f32, topk_f64},
    .fma_rate = fma_rate_f32,
};

}  // namespace pairloom::PAIRLOOM_ISA
