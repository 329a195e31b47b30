// Hinges of all triplets of a row of similarities, without listing them: for each positive, one pass over the row's negatives.
//
//   over (p, n) with lowest < D_n - D_p <= highest:      h = D_p - D_n + margin,   D = -s
//   total = sum of [h]_+      active = how many h > 0      count = how many pairs      slope = d total / d s
//
// O(P N) vectors for P positives and N negatives. Differences are taken before anything is added, so small hinges between large
// distances keep their digits. A row with NaN in a pair has the total NaN.
#pragma once

#include <limits>

#include "core/buffer.h"
#include "core/parallel.h"
#include "core/simd.h"
#include "core/types.h"
#include "engine/rows.h"

namespace pairloom::PAIRLOOM_ISA {

template <class T>
class TripletHinges {
 public:
  TripletHinges(const TripletHingesCall& call, const Parallel& pool) : call_(call), pool_(pool) {}

  void run() const {
    parallel_for(pool_, call_.rows, [&](int64_t begin, int64_t end) {
      Scratch scratch(vector_width<T>(call_.columns));
      for (int64_t i = begin; i < end; ++i) row(i, scratch);
    });
  }

 private:
  // The pairs of a row, one after the other.
  struct Scratch {
    explicit Scratch(int64_t columns) : far(columns), slope(columns), negatives(columns), positives(columns) {}
    Buffer<T> far;    // distances of negatives
    Buffer<T> slope;  // how often each is in an active triplet
    Buffer<int64_t> negatives;
    Buffer<int64_t> positives;
  };

  struct Sums {
    double total = 0;
    int64_t active = 0;
    int64_t count = 0;
  };

  // Columns of a mask, in order. What is written behind the last one is overwritten or not read.
  static int64_t columns_of(const uint8_t* mask, int64_t columns, int64_t* out) {
    int64_t count = 0;
    for (int64_t j = 0; j < columns; ++j) {
      out[count] = j;
      count += mask[j] != 0;
    }
    return count;
  }

  void row(int64_t i, Scratch& scratch) const {
    const int64_t m = call_.columns;
    const T* s = static_cast<const T*>(call_.s) + i * m;
    T* slope = call_.slope != nullptr ? static_cast<T*>(call_.slope) + i * m : nullptr;
    if (slope != nullptr) std::fill(slope, slope + m, T{0});
    const int64_t positives = columns_of(call_.positive + i * m, m, scratch.positives.get());
    const int64_t negatives = positives > 0 ? columns_of(call_.negative + i * m, m, scratch.negatives.get()) : 0;
    Sums sums;
    if (negatives > 0) {
      bool strange = false;
      for (int64_t k = 0; k < negatives; ++k) {
        const T far = -s[scratch.negatives[k]];
        strange |= far != far;
        scratch.far[k] = far;
        scratch.slope[k] = T{0};
      }
      for (int64_t k = negatives; k < vector_width<T>(negatives); ++k) scratch.far[k] = T{0};
      for (int64_t k = 0; k < positives; ++k) {
        const int64_t p = scratch.positives[k];
        strange |= s[p] != s[p];
        const int64_t before = sums.active;
        one_positive(-s[p], negatives, scratch, sums);
        if (slope != nullptr) slope[p] = -static_cast<T>(sums.active - before);
      }
      for (int64_t k = 0; slope != nullptr && k < negatives; ++k) slope[scratch.negatives[k]] = scratch.slope[k];
      if (strange) {
        sums.total = std::numeric_limits<double>::quiet_NaN();
        sums.active = std::max<int64_t>(sums.active, 1);
        for (int64_t j = 0; slope != nullptr && j < m; ++j) slope[j] = std::numeric_limits<T>::quiet_NaN();
      }
    }
    static_cast<T*>(call_.total)[i] = static_cast<T>(sums.total);
    call_.active[i] = sums.active;
    call_.count[i] = sums.count;
  }

  void one_positive(T near, int64_t negatives, Scratch& scratch, Sums& sums) const {
    constexpr int64_t kBlock = 2048;  // terms that are summed in lanes of T
    const T margin = static_cast<T>(call_.margin);
    const vec<T> edge = splat(near + margin), low = splat(near + static_cast<T>(call_.lowest)),
                 high = splat(near + static_cast<T>(call_.highest));
    const mask<T> all = ~mask<T>{};
    for (int64_t first = 0; first < negatives; first += kBlock) {
      const int64_t last = std::min(first + kBlock, negatives);
      vec<T> total{};
      mask<T> active_lanes{}, count_lanes{};
      for (int64_t k = first; k < last; k += kLanes<T>) {
        const vec<T> far = load(scratch.far.get() + k);
        mask<T> taken = k + kLanes<T> <= last ? all : lane_numbers<T>() + static_cast<lane_int<T>>(k) < static_cast<lane_int<T>>(last);
        if (call_.has_lowest) taken &= far > low;
        if (call_.has_highest) taken &= far <= high;
        const mask<T> active = taken & (far < edge);
        total += active ? (near - far) + margin : vec<T>{};
        count_lanes -= taken;  // true is -1
        active_lanes -= active;
        T* slope = scratch.slope.get() + k;
        store<T>(slope, load(slope) + (active ? splat(T{1}) : vec<T>{}));
      }
      sums.total += static_cast<double>(sum_lanes<T>(total));
      sums.active += static_cast<int64_t>(sum_lanes<lane_int<T>>(active_lanes));
      sums.count += static_cast<int64_t>(sum_lanes<lane_int<T>>(count_lanes));
    }
  }

  const TripletHingesCall& call_;
  const Parallel& pool_;
};

}  // namespace pairloom::PAIRLOOM_ISA
