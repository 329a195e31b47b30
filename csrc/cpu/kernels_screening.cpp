// Rows in few bits, and top-k in them or screened by them, at one instruction-set level.
#include "cpu/level.h"
#include "engine/coded_topk.h"
#include "engine/screened_topk.h"

namespace pairloom::PAIRLOOM_ISA {
namespace {

template <class T, class Code>
void code_rows_as(const CodeRowsCall& call, const Parallel& pool) {
  const int64_t rows = call.rows.rows;
  parallel_for(pool, rows, [&](int64_t begin, int64_t end) {
    Buffer<T> row(call.rows.dim);
    for (int64_t i = begin; i < end; ++i) {
      copy_row(call.rows, i, row.get());
      const CodedRow coded = code_row(row.get(), call.rows.dim, call.stride, static_cast<Code*>(call.codes) + i * call.stride);
      store_record(coded, call.records + i, rows);
    }
  });
}

template <class T>
void code_rows(const CodeRowsCall& call, const Parallel& pool) {
  call.int8 ? code_rows_as<T, int8_t>(call, pool) : code_rows_as<T, uint16_t>(call, pool);
}

// f(products) for the products that serve int8 or bfloat16 codes and so many queries; tiles do not pay for a few.
template <class F>
void with_products(bool int8, int64_t queries, const F& f) {
#if defined(__AMX_TILE__) && defined(__AMX_INT8__)
  if (queries >= 8) return int8 ? f(TileProducts<QuadSteps>()) : f(TileProducts<BfloatSteps>());
  return int8 ? f(VectorProducts<QuadSteps>()) : f(VectorProducts<BfloatSteps>());
#else
  (void)queries;
  if (!int8) return f(VectorProducts<BfloatSteps>());
#if defined(__AVX512F__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512vnni")) return f(VectorProducts<QuadSteps>());
#endif
  f(VectorProducts<PairSteps>());
#endif
}

template <class T>
void screened_topk(const ScreenedTopkCall& call, const Parallel& pool) {
  with_products(call.codes.int8, call.topk.queries.rows, [&](auto products) { ScreenedTopk<T, decltype(products)>(call, pool).run(); });
}

// Many queries pay for coding the gallery on the way: the answers are the same, bit for bit. Not where each of many threads keeps so
// much for a query that the gallery would be coded again for every few of them.
bool pays(const TopkCall& call, const Parallel& pool) {
  const int64_t dim = call.gallery.dim;
  return call.queries.rows >= 256 && call.gallery.rows >= 8192 && dim >= 64 && dim <= 4096 && call.k > 0 && call.k <= 64 &&
         pool.threads <= 16;
}

template <class T>
void topk(const TopkCall& call, const Parallel& pool) {
  if (!pays(call, pool)) return Topk<T>(call, pool).run();
  constexpr int64_t kStride = kCodeStride<int8_t>;
  Buffer<int64_t> rescored(call.queries.rows);
  const int64_t stride = (call.gallery.dim + kStride - 1) / kStride * kStride;
  screened_topk<T>(
      {.topk = call, .codes = {.codes = nullptr, .records = nullptr, .stride = stride, .int8 = true}, .rescored = rescored.get()}, pool);
}

}  // namespace

void topk_f32(const TopkCall& call, const Parallel& pool) { topk<float>(call, pool); }
void topk_f64(const TopkCall& call, const Parallel& pool) { topk<double>(call, pool); }
void code_rows_f32(const CodeRowsCall& call, const Parallel& pool) { code_rows<float>(call, pool); }
void code_rows_f64(const CodeRowsCall& call, const Parallel& pool) { code_rows<double>(call, pool); }
void screened_topk_f32(const ScreenedTopkCall& call, const Parallel& pool) { screened_topk<float>(call, pool); }
void screened_topk_f64(const ScreenedTopkCall& call, const Parallel& pool) { screened_topk<double>(call, pool); }
void coded_topk(const CodedTopkCall& call, const Parallel& pool) {
  with_products(true, call.topk.queries.rows, [&](auto products) {
    if constexpr (sizeof(typename decltype(products)::Packing::Stored) == 1) CodedTopk<decltype(products)>(call, pool).run();
  });
}

}  // namespace pairloom::PAIRLOOM_ISA
