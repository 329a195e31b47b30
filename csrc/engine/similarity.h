// Similarities of a block of rows with packed columns. Larger is better in all of them.
//
// The Euclidean ones sum squared differences instead of expanding |a|^2 - 2ab + |b|^2: a row's distance to itself is exactly 0, no
// distance is negative, and nothing cancels for large norms.
#pragma once

#include "engine/gemm.h"
#include "engine/rows.h"

namespace pairloom::PAIRLOOM_ISA {

inline bool normalizes(Similarity similarity) { return similarity == Similarity::cosine; }

// From sums over the depth to similarities.
template <class T>
void finish_block(Similarity similarity, int64_t count, int64_t columns, T* s, int64_t s_stride) {
  if (!is_distance(similarity)) return;
  const bool root = similarity == Similarity::euclidean;
  for (int64_t r = 0; r < count; ++r) {
    T* row = s + r * s_stride;
    for (int64_t j = 0; j < columns; ++j) row[j] = root ? -std::sqrt(row[j]) : -row[j];
  }
}

template <class T>
void similarity_block(Similarity similarity, const T* rows, int64_t stride, int64_t count, const T* panels, int64_t dim,
                      int64_t panel_count, T* s, int64_t s_stride) {
  if (is_distance(similarity)) {
    gemm_packed<SquaredDifference>(rows, stride, panels, dim, panel_count, s, s_stride, count);
  } else {
    gemm_packed<Dot>(rows, stride, panels, dim, panel_count, s, s_stride, count);
  }
  finish_block(similarity, count, panel_count * kPanel<T>, s, s_stride);
}

// The same for at most kTileRows rows and `columns` rows of m from `first` on, without panels. `scratch` holds kPanel rows of `stride`.
template <class T>
void similarity_few(Similarity similarity, const T* rows, int64_t stride, int64_t count, const Matrix& m, int64_t first, int64_t columns,
                    T* scratch, T* s, int64_t s_stride) {
  for (int64_t j = 0; j < columns; j += kPanel<T>) {
    const int64_t there = std::min(kPanel<T>, columns - j);
    const RowsOf<T> b = rows_in_place(m, first + j, there, scratch, stride);
    for (int64_t l = 0; l < there; l += kLanes<T>) {
      const RowsOf<T> some{b.data + l * b.stride, b.stride};
      T factors[kPanel<T>];
      row_factors(m, first + j + l, some, std::min<int64_t>(kLanes<T>, there - l), normalizes(similarity), factors);
      const auto multiply = is_distance(similarity) ? few_of_rows<SquaredDifference, kTileRows, T> : few_of_rows<Dot, kTileRows, T>;
      multiply(rows, stride, count, some, there - l, load(factors), m.dim, s + j + l, s_stride);
    }
  }
  finish_block(similarity, count, columns, s, s_stride);
}

// Rows [first, first + count) of m, loaded and packed into panels; `scratch` holds kPanel rows of `stride`.
template <class T>
void pack_rows(const Matrix& m, Similarity similarity, int64_t first, int64_t count, int64_t stride, T* scratch, T* panels) {
  for (int64_t j = 0; j < count; j += kPanel<T>) {
    const int64_t rows = std::min(kPanel<T>, count - j);
    const RowsOf<T> some = rows_in_place(m, first + j, rows, scratch, stride);
    T factors[kPanel<T>];
    row_factors(m, first + j, some, rows, normalizes(similarity), factors);
    pack_panel(some, rows, m.dim, factors, panels + j * m.dim);
  }
}

}  // namespace pairloom::PAIRLOOM_ISA
