// Which columns are positives and negatives of a row, as masks over vectors of columns, without an N x M mask.
#pragma once

#include <algorithm>

#include "core/labels.h"
#include "core/simd.h"

namespace pairloom::PAIRLOOM_ISA {

template <class T>
struct PairSet {
  const lane_int<T>* column_class;  // (M, padded with kNoPair to whole vectors), or null: every column is a negative
  const int32_t* row_class;         // (N)
  bool same_class_is_positive;      // otherwise columns of the row's class are no pair
  bool own_column_is_positive;      // column i of row i; otherwise it is no pair
  bool has_own_column;
  int64_t columns;
  // Multi-hot labels: rows and columns that share a bit are of one class. `words` arrays (M, padded like column_class), and (N, words).
  int64_t words;
  int64_t word_stride;
  const lane_int<T>* column_words;
  const lane_int<T>* row_words;

  bool ignores(int64_t row) const { return row_class[row] == kIgnoredRow; }

  // body(j, positive, negative) for each vector of columns j in [begin, end); begin is a whole number of vectors.
  template <class Body>
  PAIRLOOM_INLINE void visit(int64_t row, int64_t begin, int64_t end, Body&& body) const {
    constexpr int64_t kStep = kLanes<T>;
    const mask<T> all = ~mask<T>{};
    const int64_t own = has_own_column ? row / kStep * kStep : -1;
    const auto masks_of = [&](int64_t j, mask<T>& positive, mask<T>& negative) PAIRLOOM_LAMBDA_INLINE {
      positive = mask<T>{};
      negative = all;
      if (column_class != nullptr) {
        const mask<T> column = load(column_class + j);
        mask<T> same = column == static_cast<lane_int<T>>(row_class[row]);
        for (int64_t w = 0; w < words; ++w) same |= (load(column_words + w * word_stride + j) & row_words[row * words + w]) != 0;
        negative = (column != static_cast<lane_int<T>>(kNoPair)) & ~same;
        if (same_class_is_positive) positive = same;
      }
    };
    // The vectors that need more care: the one with the row's own column and the last, partly filled one.
    const auto careful = [&](int64_t j) {
      mask<T> positive, negative;
      masks_of(j, positive, negative);
      const mask<T> column = lane_numbers<T>() + static_cast<lane_int<T>>(j);
      if (j == own) {
        const mask<T> self = column == static_cast<lane_int<T>>(row);
        const mask<T> kept = self & (column_class != nullptr ? mask<T>(load(column_class + j) != static_cast<lane_int<T>>(kNoPair)) : all);
        positive = own_column_is_positive ? positive | kept : positive & ~self;
        negative &= ~self;
      }
      const mask<T> real = column < static_cast<lane_int<T>>(columns);
      body(j, positive & real, negative & real);
    };
    const auto plain = [&](int64_t from, int64_t to) PAIRLOOM_LAMBDA_INLINE {
      if (column_class == nullptr) {
        for (int64_t j = from; j < to; j += kStep) body(j, mask<T>{}, all);
      } else {
        for (int64_t j = from; j < to; j += kStep) {
          mask<T> positive, negative;
          masks_of(j, positive, negative);
          body(j, positive, negative);
        }
      }
    };
    const int64_t whole = std::min(end, columns / kStep * kStep);
    int64_t j = begin;
    if (own >= begin && own < whole) {
      plain(j, own);
      careful(own);
      j = own + kStep;
    }
    plain(j, whole);
    if (whole < end && whole >= begin) careful(whole);
  }
};

}  // namespace pairloom::PAIRLOOM_ISA
