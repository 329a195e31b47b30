// Which tiles of W hold a weight other than 0. Mining leaves few: the products of the gradients pass over the rest.
#pragma once

#include <algorithm>

#include "core/buffer.h"
#include "core/simd.h"

namespace pairloom::PAIRLOOM_ISA {

constexpr int64_t kLiveColumns = 32;

// Of the rows of a chunk, by units of `row_unit` rows and kLiveColumns columns. A thread marks and reads whole units.
class LiveTiles {
 public:
  LiveTiles(int64_t rows, int64_t columns, int64_t row_unit)
      : row_unit_(row_unit), columns_((columns + kLiveColumns - 1) / kLiveColumns), flags_((rows + row_unit - 1) / row_unit * columns_) {}

  // Looks at W of `count` rows from row r of the chunk on (whole units), columns [begin, end), `begin` a multiple of kLiveColumns.
  template <class T>
  void mark(int64_t r, int64_t count, int64_t begin, int64_t end, const T* w, int64_t stride) const {
    for (int64_t unit = 0; unit < count; unit += row_unit_) {
      const int64_t rows = std::min(row_unit_, count - unit);
      for (int64_t j = begin; j < end; j += kLiveColumns) {
        const int64_t last = std::min(j + kLiveColumns, end);
        mask<T> found{};
        for (int64_t i = unit; i < unit + rows; ++i) {
          for (int64_t k = j; k < last; k += kLanes<T>) found |= load(w + i * stride + k) != T{0};  // whole vectors: beyond M stands 0
        }
        flags_[(r + unit) / row_unit_ * columns_ + j / kLiveColumns] = pairloom::PAIRLOOM_ISA::any(found) ? 1 : 0;
      }
    }
  }

  bool any_of(int64_t unit, int64_t begin, int64_t end) const {
    const char* row = flags_.get() + unit * columns_;
    for (int64_t j = begin / kLiveColumns; j * kLiveColumns < end; ++j) {
      if (row[j] != 0) return true;
    }
    return false;
  }

  // f(first, last) for the runs of consecutive units in [begin, end), of rows from the unit of row r on, that are live in columns
  // [j, j_end); in rows of the chunk.
  template <class F>
  void row_runs(int64_t begin, int64_t end, int64_t j, int64_t j_end, F&& f) const {
    for (int64_t r = begin; r < end;) {
      if (!any_of(r / row_unit_, j, j_end)) {
        r += row_unit_;
        continue;
      }
      const int64_t first = r;
      while (r < end && any_of(r / row_unit_, j, j_end)) r += row_unit_;
      f(first, std::min(r, end));
    }
  }

  // Of the first `count` rows: all, and the live ones.
  int64_t tiles(int64_t count) const { return (count + row_unit_ - 1) / row_unit_ * columns_; }
  int64_t live(int64_t count) const {
    int64_t total = 0;
    for (int64_t k = 0; k < tiles(count); ++k) total += flags_[k];
    return total;
  }

 private:
  int64_t row_unit_;
  int64_t columns_;
  Buffer<char> flags_;
};

}  // namespace pairloom::PAIRLOOM_ISA
