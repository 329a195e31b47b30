// Sums over all mixtures of an anchor a, and their gradients, from similarities alone. A mixture of unit rows x1 and x2,
//
//   v = l x1 + m x2,  m = 1 - l:    s(a, v) = (l s(a, x1) + m s(a, x2)) / |v|,   |v|^2 = (l - m)^2 + 2 l m (1 + s(x1, x2))
//
// is never formed: that would cost D numbers for each. x1 are the positives of the anchor, or the anchor itself; x2 its negatives. With
// term functions f+ and f- (MixtureHalf):
//
//   sums = sum over mixtures of l f+(s(a, v)),  sum of m f-(s(a, v));     of exponential terms the logarithm of the sum
//   ds/ds(a, x1) = l / |v|,   ds/ds(a, x2) = m / |v|,   ds/ds(x1, x2) = -s l m / |v|^2
//
// |v| below the norm floor: s = 0 without gradient, as for zero rows everywhere. |v|^2 is written so that it does not cancel.
//
// A thread takes whole classes of anchors: the rows of `among` that they write are theirs alone.
// Source of the losses: Venkataramanan et al., "It Takes Two to Tango: Mixup for Deep Metric Learning", ICLR 2022.
#pragma once

#include <algorithm>
#include <limits>

#include "core/buffer.h"
#include "core/parallel.h"
#include "core/types.h"

namespace pairloom::PAIRLOOM_ISA {

template <class T>
class Mixtures {
 public:
  Mixtures(const MixturesCall& call, const Parallel& pool) : call_(call), pool_(pool), halves_{Half(call.positive), Half(call.negative)} {}

  void run() {
    Buffer<int64_t> classes(call_.anchors + 1);
    int64_t count = 0;
    for (int64_t a = 0; a < call_.anchors; ++a) {
      if (a == 0 || call_.begin[a] != call_.begin[a - 1]) classes[count++] = a;
    }
    classes[count] = call_.anchors;
    parallel_for(pool_, count, [&](int64_t begin, int64_t end) {
      for (int64_t a = classes[begin]; a < classes[end]; ++a) anchor(a);
    });
  }

 private:
  struct Half {
    explicit Half(const MixtureHalf& half) : term(half.term), scale(static_cast<T>(half.scale)), offset(static_cast<T>(half.offset)) {}
    MixtureTerm term;
    T scale, offset;

    bool logarithmic() const { return term == MixtureTerm::exponential; }
  };

  // What is known of a half of an anchor.
  struct State {
    T shift;       // of exponents: the largest t
    double total;  // of the terms, each shifted
    T slope;       // dL / d(sum of terms), shifted
  };

  // A vector of mixtures: those of x1 with some neighbouring columns.
  struct Vector {
    vec<T> first, second;  // shares l and m
    vec<T> s;
    vec<T> inverse;  // 1 / |v|
    mask<T> there;   // lanes that are columns
  };

  // x1, as it meets all columns.
  struct First {
    const T* among;  // s(x1, .)
    T* d_among;
    const T* lambda;  // of the pairs, or null
    T s;              // s(a, x1)
    T* d_s;           // null for the anchor itself, whose similarity with itself is constant
  };

  void anchor(int64_t a) {
    State states[2] = {};
    for (int h = 0; h < 2; ++h) {
      if (halves_[h].logarithmic()) states[h].shift = -std::numeric_limits<T>::infinity();
    }
    if (halves_[0].logarithmic() || halves_[1].logarithmic()) {
      each(a, [&](const Vector& v, const First&, int64_t) PAIRLOOM_LAMBDA_INLINE {
        for (int h = 0; h < 2; ++h) {
          if (!halves_[h].logarithmic()) continue;
          const mask<T> counts = v.there & (share(v, h) > T{0});
          const vec<T> t = counts ? exponent(v, h) : splat(-std::numeric_limits<T>::infinity());
          states[h].shift = larger<T>(states[h].shift, max_lanes<T>(t));
        }
      });
    }
    for (int h = 0; h < 2; ++h) {
      if (states[h].shift == -std::numeric_limits<T>::infinity()) states[h].shift = T{0};
    }
    each(a, [&](const Vector& v, const First&, int64_t) PAIRLOOM_LAMBDA_INLINE {
      for (int h = 0; h < 2; ++h) states[h].total += static_cast<double>(sum_lanes<T>(share(v, h) * value(v, h, states[h].shift)));
    });
    T* sums = static_cast<T*>(call_.sums) + 2 * a;
    for (int h = 0; h < 2; ++h) {
      const double total = states[h].total;
      sums[h] = static_cast<T>(halves_[h].logarithmic() ? static_cast<double>(states[h].shift) + std::log(total) : total);
    }
    if (call_.d_sums != nullptr) gradients(a, states);
  }

  void gradients(int64_t a, State (&states)[2]) {
    const T* d_sums = static_cast<const T*>(call_.d_sums) + 2 * a;
    for (int h = 0; h < 2; ++h) {
      const double total = states[h].total;
      const double slope = static_cast<double>(d_sums[h]) * static_cast<double>(halves_[h].scale);
      states[h].slope = static_cast<T>(!halves_[h].logarithmic() ? slope : total == 0 ? 0.0 : slope / total);
    }
    T* const d_row = static_cast<T*>(call_.d_s) + a * call_.columns;
    First last{};
    double d_first = 0;
    const auto finish = [&] {
      if (last.d_s != nullptr) *last.d_s += static_cast<T>(d_first);
      d_first = 0;
    };
    each(a, [&](const Vector& v, const First& first, int64_t j) PAIRLOOM_LAMBDA_INLINE {
      if (first.among != last.among) finish();
      last = first;
      vec<T> d_mixture{};
      for (int h = 0; h < 2; ++h) d_mixture += share(v, h) * slope(v, h, states[h].shift) * states[h].slope;
      d_mixture = v.there ? d_mixture : vec<T>{};
      const vec<T> per_norm = d_mixture * v.inverse;
      d_first += static_cast<double>(sum_lanes<T>(per_norm * v.first));
      const int64_t count = std::min<int64_t>(kLanes<T>, call_.columns - j);
      add(d_row + j, per_norm * v.second, count);
      add(first.d_among + j, -per_norm * v.s * v.first * v.second * v.inverse, count);
    });
    finish();
  }

  // body(vector, first, j) for every x1 and every vector of negatives, in one order.
  template <class Body>
  void each(int64_t a, const Body& body) const {
    const T* row = static_cast<const T*>(call_.s) + a * call_.columns;
    T* d_row = call_.d_s == nullptr ? nullptr : static_cast<T*>(call_.d_s) + a * call_.columns;
    const T* lambda = static_cast<const T*>(call_.lambda);
    const T own_lambda = call_.lambda_by_pair ? T{0} : lambda[a * call_.lambda_anchor_stride];
    const int64_t own = call_.own[a];
    for (int64_t p = call_.begin[a]; call_.positives && p < call_.end[a]; ++p) {
      if (p == own) continue;
      const int64_t at = (p - call_.among_first) * call_.columns;
      T* d_among = call_.d_among == nullptr ? nullptr : static_cast<T*>(call_.d_among) + at;
      const First first{static_cast<const T*>(call_.among) + at, d_among, call_.lambda_by_pair ? lambda + at : nullptr, row[p],
                        d_row == nullptr ? nullptr : d_row + p};
      both_sides(a, row, first, own_lambda, body);
    }
    if (call_.self) {
      // A row of norm 0 is not similar to itself.
      const T s = own >= 0 && !(row[own] > T{0.5}) ? row[own] : T{1};
      const First first{row, d_row, call_.lambda_by_pair ? lambda + a * call_.columns : nullptr, s, nullptr};
      both_sides(a, row, first, own_lambda, body);
    }
  }

  template <class Body>
  void both_sides(int64_t a, const T* row, const First& first, T lambda, const Body& body) const {
    walk(row, first, lambda, 0, call_.begin[a], body);
    walk(row, first, lambda, call_.end[a], call_.columns, body);
  }

  template <class Body>
  void walk(const T* row, const First& first, T lambda, int64_t begin, int64_t end, const Body& body) const {
    for (int64_t j = begin; j < end; j += kLanes<T>) {
      const int64_t count = std::min<int64_t>(kLanes<T>, end - j), readable = std::min<int64_t>(kLanes<T>, call_.columns - j);
      Vector v;
      v.there = lane_numbers<T>() < static_cast<lane_int<T>>(count);
      v.first = first.lambda == nullptr ? splat(lambda) : some(first.lambda + j, readable);
      v.second = T{1} - v.first;
      const vec<T> difference = v.first - v.second;
      const vec<T> squares = difference * difference + T{2} * v.first * v.second * (T{1} + some(first.among + j, readable));
      const mask<T> nothing = squares < static_cast<T>(kNormFloor * kNormFloor);  // false for NaN
      v.inverse = nothing ? vec<T>{} : T{1} / root(nothing ? splat(T{1}) : squares);
      v.s = (v.first * first.s + v.second * some(row + j, readable)) * v.inverse;
      v.first = v.there ? v.first : vec<T>{};
      v.second = v.there ? v.second : vec<T>{};
      v.s = v.there ? v.s : vec<T>{};
      body(v, first, j);
    }
  }

  static PAIRLOOM_INLINE vec<T> root(vec<T> x) {
    for (int i = 0; i < kLanes<T>; ++i) x[i] = std::sqrt(x[i]);
    return x;
  }

  static PAIRLOOM_INLINE vec<T> some(const T* from, int64_t count) {
    if (count == kLanes<T>) return load(from);
    vec<T> v{};
    std::memcpy(&v, from, static_cast<size_t>(count) * sizeof(T));
    return v;
  }

  static PAIRLOOM_INLINE void add(T* to, vec<T> x, int64_t count) {
    const vec<T> sum = some(to, count) + x;
    std::memcpy(to, &sum, static_cast<size_t>(count) * sizeof(T));
  }

  static PAIRLOOM_INLINE vec<T> share(const Vector& v, int half) { return half == 0 ? v.first : v.second; }
  PAIRLOOM_INLINE vec<T> exponent(const Vector& v, int half) const { return halves_[half].scale * (v.s - halves_[half].offset); }

  PAIRLOOM_INLINE vec<T> value(const Vector& v, int half, T shift) const {
    const vec<T> t = exponent(v, half);
    switch (halves_[half].term) {
      case MixtureTerm::linear:
        return t;
      case MixtureTerm::hinge:
        return t < T{0} ? vec<T>{} : t;  // NaN stays
      case MixtureTerm::softplus:
        return (t > T{0} ? t : vec<T>{}) + log1p(exp(t > T{0} ? -t : t));
      default:
        return share(v, half) > T{0} ? exp(t - shift) : vec<T>{};
    }
  }

  PAIRLOOM_INLINE vec<T> slope(const Vector& v, int half, T shift) const {
    const vec<T> t = exponent(v, half);
    switch (halves_[half].term) {
      case MixtureTerm::linear:
        return splat(T{1});
      case MixtureTerm::hinge:
        return t > T{0} ? splat(T{1}) : vec<T>{};
      case MixtureTerm::softplus: {
        const vec<T> e = exp(t > T{0} ? -t : t);
        const vec<T> inverse = T{1} / (T{1} + e);
        return t > T{0} ? inverse : e * inverse;
      }
      default:
        return share(v, half) > T{0} ? exp(t - shift) : vec<T>{};
    }
  }

  const MixturesCall& call_;
  const Parallel& pool_;
  const Half halves_[2];
};

}  // namespace pairloom::PAIRLOOM_ISA
