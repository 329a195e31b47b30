// Similarities of a block of rows with packed columns. Larger is better in all of them.
//
// The Euclidean ones sum squared differences instead of expanding |a|^2 - 2ab + |b|^2: a row's distance to itself is exactly 0, no
// distance is negative, and nothing cancels for large norms.
#pragma once

#include "engine/gemm.h"
#include "engine/rows.h"

namespace pairloom::PAIRLOOM_ISA {

inline bool normalizes(Similarity similarity) { return similarity == Similarity::cosine; }

template <class T>
void similarity_block(Similarity similarity, const T* rows, int64_t stride, int64_t count, const T* panels, int64_t dim,
                      int64_t panel_count, T* s, int64_t s_stride) {
  if (similarity == Similarity::cosine || similarity == Similarity::dot) {
    gemm_packed<Dot>(rows, stride, panels, dim, panel_count, s, s_stride, count);
    return;
  }
  gemm_packed<SquaredDifference>(rows, stride, panels, dim, panel_count, s, s_stride, count);
  const bool root = similarity == Similarity::euclidean;
  for (int64_t r = 0; r < count; ++r) {
    T* row = s + r * s_stride;
    for (int64_t j = 0; j < panel_count * kPanel<T>; ++j) row[j] = root ? -std::sqrt(row[j]) : -row[j];
  }
}

// Rows [first, first + count) of m, loaded and packed into panels; `scratch` holds kPanel rows of `stride`.
template <class T>
void pack_rows(const Matrix& m, Similarity similarity, int64_t first, int64_t count, int64_t stride, T* scratch, T* panels) {
  for (int64_t j = 0; j < count; j += kPanel<T>) {
    const int64_t rows = std::min(kPanel<T>, count - j);
    for (int64_t r = 0; r < rows; ++r) load_row(m, first + j + r, normalizes(similarity), scratch + r * stride, stride);
    pack_panel(scratch, stride, rows, m.dim, panels + j * m.dim);
  }
}

}  // namespace pairloom::PAIRLOOM_ISA
