// Triplet margin loss over all triplets of an anchor, or those of one kind, without listing them. With D = -s a distance:
//
//   L = sum over positives p and negatives n with lowest < D_n - D_p <= highest of  l(h),   h = D_p - D_n + margin
//   l(h) = [h]_+      or, smooth,      log(1 + e^h)
//
// One pass over the row for each positive; P N / lanes steps for P positives among N columns. Differences are taken before anything is
// added, so small hinges between large distances keep their digits.
// Gradient: dL/ds_n = sum over p of l'(h),  dL/ds_p = -sum over n of l'(h),  with l' = [h > 0] or sigmoid(h).
// No positives, no negatives, no triplet of the kind: 0. NaN in a pair of the row: NaN, and one of its triplets counts as active.
// Reference: Schroff, Kalenichenko, Philbin, "FaceNet", CVPR 2015.
#pragma once

#include "core/buffer.h"
#include "engine/rule.h"

namespace pairloom::PAIRLOOM_ISA {

template <class T>
struct TripletMargin : RuleDefaults<T> {
  explicit TripletMargin(const TripletMarginCall& call)
      : margin(static_cast<T>(call.margin)),
        smooth(call.smooth),
        has_lowest(call.has_lowest),
        has_highest(call.has_highest),
        lowest(static_cast<T>(call.lowest)),
        highest(static_cast<T>(call.highest)) {}

  T margin;
  bool smooth;
  bool has_lowest, has_highest;
  T lowest, highest;

  static constexpr bool kWholeRow = true;
  bool mines() const { return !smooth; }

  struct Row {
    T loss = 0;
    int64_t active = 0;  // triplets with a loss above 0
    int64_t terms = 0;   // triplets of the kind
  };

  struct Scratch {
    explicit Scratch(int64_t width) : far(width), slope(width), positives(width) {}
    Buffer<T> far;    // distances of the negatives; NaN, which compares as false, for all other columns
    Buffer<T> slope;  // dL/ds
    Buffer<int64_t> positives;
  };

  template <class Visit>
  Row row(const T* s, int64_t width, Visit&& visit, Scratch& scratch) const {
    constexpr T nan = std::numeric_limits<T>::quiet_NaN();
    int64_t positives = 0;
    mask<T> negatives{}, strange{};
    visit([&](int64_t j, mask<T> positive, mask<T> negative) {
      const vec<T> v = load(s + j);
      store<T>(scratch.far.get() + j, negative ? -v : splat(nan));
      store<T>(scratch.slope.get() + j, vec<T>{});
      negatives |= negative;
      strange |= (positive | negative) & (v != v);
      if (!any(positive)) return;
      for (int lane = 0; lane < kLanes<T>; ++lane) {
        scratch.positives[positives] = j + lane;
        positives += positive[lane] != 0;
      }
    });
    Row row;
    if (positives == 0 || !any(negatives)) return row;
    double total = 0;
    for (int64_t k = 0; k < positives; ++k) {
      const int64_t p = scratch.positives[k];
      scratch.slope[p] = -static_cast<T>(smooth ? add_positive<true>(-s[p], width, scratch, row, total)
                                                : add_positive<false>(-s[p], width, scratch, row, total));
    }
    row.loss = static_cast<T>(total);
    if (any(strange)) {
      row.loss = nan;
      row.active = std::max<int64_t>(row.active, 1);
      std::fill(scratch.slope.get(), scratch.slope.get() + width, nan);
    }
    return row;
  }

 private:
  // The triplets of one positive. Returns the sum of their slopes.
  template <bool kSmooth>
  double add_positive(T near, int64_t width, Scratch& scratch, Row& row, double& loss) const {
    double slopes = 0;
    for (int64_t first = 0; first < width; first += kSumBlock) {
      vec<T> total{}, shares{};
      mask<T> active_lanes{}, term_lanes{};
      for (int64_t j = first; j < std::min(first + kSumBlock, width); j += kLanes<T>) {
        const vec<T> far = load(scratch.far.get() + j);
        const vec<T> gap = far - near;
        mask<T> taken = far == far;
        if (has_lowest) taken &= gap > lowest;
        if (has_highest) taken &= ~(gap > highest);
        vec<T> value, share;
        if constexpr (kSmooth) {
          const vec<T> h = taken ? margin - gap : vec<T>{};
          const vec<T> e = exp(h > T{0} ? -h : h);
          share = T{1} / (T{1} + e);
          share = taken ? (h > T{0} ? share : e * share) : vec<T>{};
          value = taken ? (h > T{0} ? h : vec<T>{}) + log1p(e) : vec<T>{};
          active_lanes -= taken & (value > T{0});
        } else {
          const mask<T> active = taken & (margin - gap > T{0});
          value = active ? margin - gap : vec<T>{};
          share = active ? splat(T{1}) : vec<T>{};
          active_lanes -= active;  // true is -1
        }
        total += value;
        shares += share;
        term_lanes -= taken;
        T* slope = scratch.slope.get() + j;
        store<T>(slope, load(slope) + share);
      }
      loss += static_cast<double>(sum_lanes<T>(total));
      slopes += static_cast<double>(sum_lanes<T>(shares));
      row.active += static_cast<int64_t>(sum_lanes<lane_int<T>>(active_lanes));
      row.terms += static_cast<int64_t>(sum_lanes<lane_int<T>>(term_lanes));
    }
    return slopes;
  }
};

}  // namespace pairloom::PAIRLOOM_ISA
