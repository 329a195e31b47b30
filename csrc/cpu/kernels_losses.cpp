// The losses of one instruction-set level, and its kernel table: which products and which way through the pairs serve a call.
#include "core/labels.h"
#include "cpu/kernels.h"
#include "cpu/level.h"
#include "engine/bounded_rows.h"
#include "engine/pair_loss.h"
#include "engine/pair_sweep.h"
#include "engine/product_rate.h"
#include "engine/split_products.h"
#include "engine/two_ways.h"
#include "rules/info_nce.h"
#include "rules/multi_similarity.h"
#include "rules/sup_con.h"
#include "rules/triplet_margin.h"

namespace pairloom::PAIRLOOM_ISA {
namespace {

// SupCon, and InfoNCE where a row has one positive (the same formula then), by the shortest way that serves the call. False: none.
template <class T, class Products>
bool run_bounded(const PairLossCall& call, const SupCon<T>& rule, const Parallel& pool) {
  using Sweep = PairSweep<T, SupCon<T>, Products>;
  using Rows = BoundedRows<T, SupCon<T>, Products>;
  // The half that a sweep saves pays from three squares on.
  if (call.self && call.rows.rows >= 3 * Products::kChunkRows && Sweep::fits(call, pool)) {
    Sweep(call, rule, pool).run();
    return true;
  }
  if (Rows::fits(call, pool)) {
    Rows(call, rule, pool).run();
    return true;
  }
  return false;
}

template <class T, class Products>
void run(const InfoNceCall& call, const Parallel& pool) {
  const PairLossCall& pairs = call.pairs;
  const bool labels_make_positives = pairs.same_label_is_positive && pairs.row_labels != nullptr;
  const bool one_positive =
      pairs.target_is_row ? !labels_make_positives : pairs.self && pairs.label_words == 0 && largest_class(pairs) <= 2;
  if (one_positive && run_bounded<T, Products>(pairs, SupCon<T>(SupConCall{}), pool)) return;
  PairLoss<T, InfoNce<T>, Products>(pairs, InfoNce<T>(call), pool).run();
}

template <class T, class Products>
void run(const SupConCall& call, const Parallel& pool) {
  const SupCon<T> rule(call);
  if (run_bounded<T, Products>(call.pairs, rule, pool)) return;
  PairLoss<T, SupCon<T>, Products>(call.pairs, rule, pool).run();
}

template <class T, class Products>
void run(const ClipCall& call, const Parallel& pool) {
  using Sweep = PairSweep<T, SupCon<T>, Products>;
  const bool one_positive = !call.pairs.same_label_is_positive || call.pairs.row_labels == nullptr;
  if (one_positive && Sweep::fits(call.pairs, pool)) {
    Sweep(call.pairs, SupCon<T>(SupConCall{}), pool).run();
  } else {
    run_two_ways<T, InfoNce<T>, Products>(call.pairs, InfoNce<T>(InfoNceCall{}), pool);
  }
}

template <class T, class Products>
void run(const MultiSimilarityCall& call, const Parallel& pool) {
  PairLoss<T, MultiSimilarity<T>, Products>(call.pairs, MultiSimilarity<T>(call), pool).run();
}

template <class T, class Products>
void run(const TripletMarginCall& call, const Parallel& pool) {
  PairLoss<T, TripletMargin<T>, Products>(call.pairs, TripletMargin<T>(call), pool).run();
}

template <class T, class Call>
void run_loss(const Call& call, const Parallel& pool) {
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
  if constexpr (sizeof(T) == sizeof(float)) {
    const PairLossCall& pairs = call.pairs;
    const DType dtype = pairs.rows.dtype;
    const bool half = dtype == pairs.columns.dtype && (dtype == DType::bf16 || dtype == DType::f16);
    if (!is_distance(pairs.similarity) && splits_exactly(pairs, pool, half)) {
      if (!half) return run<T, SplitProducts<3>>(call, pool);
      return dtype == DType::bf16 ? run<T, SplitProducts<1>>(call, pool) : run<T, SplitProducts<2>>(call, pool);
    }
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
    .inverse_norms = {inverse_norms_f32, inverse_norms_f64},
    .topk = {topk_f32, topk_f64},
    .code_rows = {code_rows_f32, code_rows_f64},
    .screened_topk = {screened_topk_f32, screened_topk_f64},
    .coded_topk = coded_topk,
    .triplet_margin = kLoss<TripletMarginCall>,
    .mixtures = {mixtures_f32, mixtures_f64},
    .mix = {mix_f32, mix_f64},
    .mix_gradients = {mix_gradients_f32, mix_gradients_f64},
    .fma_rate = fma_rate_f32,
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
    .product_seconds = product_seconds<float, SplitProducts<3>>,
#else
    .product_seconds = product_seconds<float, FmaProducts<float>>,
#endif
};

}  // namespace pairloom::PAIRLOOM_ISA
