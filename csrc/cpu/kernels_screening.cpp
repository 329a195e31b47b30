// int8 rows and top-k that is screened by them, at one instruction-set level.
#include "cpu/level.h"
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
      call.records[kScale * rows + i] = coded.scale;
      call.records[kResidual * rows + i] = coded.residual;
      call.records[kNorm * rows + i] = coded.norm;
      call.records[kInverseNorm * rows + i] = static_cast<float>(inverse_norm(row.get(), call.rows.dim));
      call.records[kCodeSum * rows + i] = static_cast<float>(coded.sum);
    }
  });
}

template <class T>
void code_rows(const CodeRowsCall& call, const Parallel& pool) {
  call.int8 ? code_rows_as<T, int8_t>(call, pool) : code_rows_as<T, uint16_t>(call, pool);
}

template <class T>
void screened_topk(const ScreenedTopkCall& call, const Parallel& pool) {
  const bool few = call.topk.queries.rows < 8;  // for which tiles do not pay
#if defined(__AMX_TILE__) && defined(__AMX_INT8__)
  if (!few && call.codes.int8) return ScreenedTopk<T, TileProducts<QuadSteps>>(call, pool).run();
  if (!few) return ScreenedTopk<T, TileProducts<BfloatSteps>>(call, pool).run();
#endif
  if (!call.codes.int8) return ScreenedTopk<T, VectorProducts<BfloatSteps>>(call, pool).run();
#if defined(__AMX_TILE__) && defined(__AMX_INT8__)
  return ScreenedTopk<T, VectorProducts<QuadSteps>>(call, pool).run();
#else
#if defined(__AVX512F__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512vnni")) return ScreenedTopk<T, VectorProducts<QuadSteps>>(call, pool).run();
#endif
  ScreenedTopk<T, VectorProducts<PairSteps>>(call, pool).run();
#endif
}

}  // namespace

void code_rows_f32(const CodeRowsCall& call, const Parallel& pool) { code_rows<float>(call, pool); }
void code_rows_f64(const CodeRowsCall& call, const Parallel& pool) { code_rows<double>(call, pool); }
void screened_topk_f32(const ScreenedTopkCall& call, const Parallel& pool) { screened_topk<float>(call, pool); }
void screened_topk_f64(const ScreenedTopkCall& call, const Parallel& pool) { screened_topk<double>(call, pool); }

}  // namespace pairloom::PAIRLOOM_ISA
