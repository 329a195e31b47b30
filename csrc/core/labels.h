// Labels are compared exactly, whatever their size: 64-bit ids are replaced once by small class numbers, which then fit beside floats
// in SIMD lanes.
#pragma once

#include <cstdint>

#include "core/types.h"

namespace pairloom {

// Class numbers start at 0. Below are the values that stand for something else.
constexpr int32_t kPlainNegative = -1;  // a column that has no anchor's label: a negative for everybody
constexpr int32_t kNoPair = -2;         // an ignored column: no pair for anybody
constexpr int32_t kUnlabelledRow = -3;  // a row without label: equal to no column
constexpr int32_t kIgnoredRow = -4;     // leaves numerator, denominator and mean

// Whether label `i` of `labels` says that its row takes no part.
bool ignored_label(const PairLossCall& call, const int64_t* labels, int64_t i);

// row_class (N) and column_class (M) from the labels of the call; rows and columns without labels get kUnlabelledRow and
// kPlainNegative, and so do multi-hot ones, which are compared by their words.
void classify_labels(const PairLossCall& call, int64_t rows, int64_t columns, int32_t* row_class, int32_t* column_class);

// How many rows of one batch carry the same label, at most.
int64_t largest_class(const PairLossCall& call);

}  // namespace pairloom
