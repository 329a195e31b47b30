// Losses and slopes of whole rows of the similarity matrix on the GPU: a block of threads takes a row, and a rule header of csrc/rules
// says what becomes of it, one value at a time. The matrix comes chunk by chunk from a product of the vendor's library and goes back
// into two more as slopes (pyext/pairloom/_device_loss.py): this is what lies between.
//
// A row is read three or four times, from the second-level cache: extremes, sums, positives if the rule asks, slopes. Nothing is atomic and
// every sum has one order, so a second run has the same bits.
#pragma once

#include <limits>

#include "core/types.h"
#include "cuda/block.h"
#include "engine/rule.h"

namespace pairloom::cuda {

using PAIRLOOM_ISA::Extremes;

// Rounded to nearest, ties to even; NaN stays NaN.
struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  __device__ explicit BFloat16(float value) {
    union {
      float number;
      uint32_t bits;
    } all{value};
    const uint32_t rounded = all.bits + 0x7fffu + ((all.bits >> 16) & 1u);
    bits = static_cast<uint16_t>((value != value ? all.bits | 0x400000u : rounded) >> 16);
  }
};

// A chunk of rows [first_row, first_row + rows), each of them with all columns; all pointers are the device's.
struct PairRows {
  const void* s;  // (rows, columns) similarities in the compute type, rows of `s_stride`
  int64_t s_stride;
  void* slopes;  // (rows, columns) dL/ds, or null; may be s itself where both are of one type
  int64_t slope_stride;
  int64_t rows, columns, first_row;
  // As in PairLossCall, of all rows of the batch.
  const int64_t* row_labels;
  const int64_t* column_labels;
  int64_t column_label_count, label_words;
  bool has_ignore_index;
  int64_t ignore_index;
  bool self, target_is_row, same_label_is_positive;
  const void* temperature;  // compute type, null for 1
  int64_t temperature_stride;
  const void* weights;       // compute type, (N) or null for 1
  void* losses;              // (rows) compute type, not weighed; 0 for an ignored row
  void* temperature_slopes;  // (rows) compute type: sum of w dL/dz (z - origin), or null
  double* stats;             // (rows, kStatCount) or null
};

__device__ inline bool ignored_label(const PairRows& call, const int64_t* labels, int64_t i) {
  if (!call.has_ignore_index || labels == nullptr) return false;
  return call.label_words == 0 ? labels[i] == call.ignore_index : labels[i * call.label_words] == -1;
}

// What column j is to row i.
struct Kind {
  bool positive, negative;
};
__device__ inline Kind kind_of(const PairRows& call, int64_t i, int64_t j) {
  const bool labelled = call.row_labels != nullptr && j < call.column_label_count;
  if (labelled && ignored_label(call, call.column_labels, j)) return {false, false};
  if ((call.self || call.target_is_row) && i == j) return {call.target_is_row, false};
  bool same = false;
  if (labelled && call.label_words == 0) same = call.row_labels[i] == call.column_labels[j];
  for (int64_t w = 0; labelled && w < call.label_words; ++w) {
    same = same || (call.row_labels[i * call.label_words + w] & call.column_labels[j * call.label_words + w]) != 0;
  }
  return {same && call.same_label_is_positive, !same};
}

template <class T>
struct PairRowsShared {
  WarpResults<T> numbers;
  WarpResults<double> wide;
};

template <class Rule, class T>
__device__ void count_row(const PairRows& call, const Rule& rule, const typename Rule::Row& row, int64_t r, T scale, const T* s,
                          PairRowsShared<T>& shared) {
  const int64_t i = call.first_row + r;
  const Extremes<T> none;
  double counts[4] = {}, sums[2] = {};
  T best_positive = none.max_positive, best_negative = none.max_negative;
  for (int64_t j = threadIdx.x; j < call.columns; j += kThreads) {
    const Kind kind = kind_of(call, i, j);
    const T z = s[j] * scale;
    counts[0] += kind.positive;
    counts[1] += kind.negative;
    counts[2] += kind.positive && rule.mined_positive(z, row);
    counts[3] += kind.negative && rule.mined_negative(z, row);
    sums[0] += kind.positive ? static_cast<double>(s[j]) : 0.0;
    sums[1] += kind.negative ? static_cast<double>(s[j]) : 0.0;
    if (kind.positive && z > best_positive) best_positive = z;
    if (kind.negative && z > best_negative) best_negative = z;
  }
  for (double& count : counts) count = sum_over_block(count, shared.wide);
  for (double& sum : sums) sum = sum_over_block(sum, shared.wide);
  best_positive = largest_in_block(best_positive, shared.numbers);
  best_negative = largest_in_block(best_negative, shared.numbers);
  if (threadIdx.x != 0) return;
  double* const out = call.stats + r * kStatCount;
  out[kAnchors] = 1;
  for (int k = 0; k < 4; ++k) out[kPositives + k] = counts[k];
  out[kAnchorsWithoutPositive] = counts[0] == 0;
  out[kAnchorsWithoutNegative] = counts[1] == 0;
  out[kTop1Hits] = best_positive > best_negative;
  out[kPositiveSimilaritySum] = sums[0];
  out[kNegativeSimilaritySum] = sums[1];
  out[kActiveAnchors] = row.loss > T{0};
}

// Before the slopes are written, which may stand where s was.
template <class Rule, class T, class Slope>
__device__ void pair_row(const PairRows& call, const Rule& rule, int64_t r, PairRowsShared<T>& shared) {
  const int64_t i = call.first_row + r;
  const T* const s = static_cast<const T*>(call.s) + r * call.s_stride;
  Slope* const slopes = call.slopes == nullptr ? nullptr : static_cast<Slope*>(call.slopes) + r * call.slope_stride;
  T* const losses = static_cast<T*>(call.losses);
  T* const temperature_slopes = static_cast<T*>(call.temperature_slopes);
  const bool ignored = ignored_label(call, call.row_labels, i);
  const T weight = ignored ? T{0} : call.weights == nullptr ? T{1} : static_cast<const T*>(call.weights)[i];
  const T scale = call.temperature == nullptr ? T{1} : T{1} / static_cast<const T*>(call.temperature)[i * call.temperature_stride];
  if (ignored) {
    for (int64_t j = threadIdx.x; slopes != nullptr && j < call.columns; j += kThreads) slopes[j] = static_cast<Slope>(T{0});
    for (int k = threadIdx.x; call.stats != nullptr && k < kStatCount; k += kThreads) call.stats[r * kStatCount + k] = 0;
    if (threadIdx.x == 0) {
      losses[r] = T{0};
      if (temperature_slopes != nullptr) temperature_slopes[r] = T{0};
    }
    return;
  }

  Extremes<T> extremes;
  for (int64_t j = threadIdx.x; j < call.columns; j += kThreads) {
    const Kind kind = kind_of(call, i, j);
    const T z = s[j] * scale;
    if (kind.positive && z < extremes.min_positive) extremes.min_positive = z;
    if (kind.positive && z > extremes.max_positive) extremes.max_positive = z;
    if (kind.negative && z > extremes.max_negative) extremes.max_negative = z;
  }
  if (Rule::kUsesPositiveExtremes) {
    extremes.min_positive = smallest_in_block(extremes.min_positive, shared.numbers);
    extremes.max_positive = largest_in_block(extremes.max_positive, shared.numbers);
  }
  extremes.max_negative = largest_in_block(extremes.max_negative, shared.numbers);
  typename Rule::Row row = rule.begin(extremes);

  T sums[Rule::kSums] = {};
  for (int64_t j = threadIdx.x; j < call.columns; j += kThreads) {
    const Kind kind = kind_of(call, i, j);
    rule.add(sums, s[j] * scale, kind.positive, kind.negative, row);
  }
  for (T& sum : sums) sum = sum_over_block(sum, shared.numbers);
  rule.end_sums(row, sums);

  T positive_sums[Rule::kPositiveSums + 1] = {};  // one more: there may be none
  if (Rule::kPositiveSums > 0) {
    for (int64_t j = threadIdx.x; j < call.columns; j += kThreads) {
      if (kind_of(call, i, j).positive) rule.add_positive(positive_sums, s[j] * scale, row);
    }
    for (int k = 0; k < Rule::kPositiveSums; ++k) positive_sums[k] = sum_over_block(positive_sums[k], shared.numbers);
  }
  rule.end(row, positive_sums);
  if (threadIdx.x == 0) losses[r] = row.loss;
  if (call.stats != nullptr) count_row(call, rule, row, r, scale, s, shared);
  if (slopes == nullptr) return;

  const T origin = rule.origin(row);
  T along = T{0};
  for (int64_t j = threadIdx.x; j < call.columns; j += kThreads) {
    const Kind kind = kind_of(call, i, j);
    const T z = s[j] * scale;
    const bool counts = weight != T{0} && (kind.positive || kind.negative);  // a weight of 0 hides NaN
    const T slope = counts ? rule.weigh(z, kind.positive, kind.negative, row) * weight : T{0};
    along += counts ? slope * (z - origin) : T{0};
    slopes[j] = static_cast<Slope>(slope * scale);
  }
  if (temperature_slopes == nullptr) return;
  along = sum_over_block(along, shared.numbers);
  if (threadIdx.x == 0) temperature_slopes[r] = along;
}

template <class Rule, class T, class Slope>
__global__ void pair_rows(const PairRows call, const Rule rule) {
  __shared__ PairRowsShared<T> shared;
  for (int64_t r = blockIdx.x; r < call.rows; r += gridDim.x) pair_row<Rule, T, Slope>(call, rule, r, shared);
}

}  // namespace pairloom::cuda
