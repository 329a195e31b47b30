// Mixtures of pairs of rows, and their gradients:
//
//   v = l x[first] + (1 - l) others[partner],   out = v, or v / |v|
//
//   with g the gradient of out:   g' = g, or (g - out <g, out>) / |v|, for which v is made again
//   d x[first] += l g',   d others[partner] += (1 - l) g',   d l = <g', x[first] - others[partner]>
//
// Without a partner v is x[first] itself. |v| below the norm floor: out is v times 0, and no gradient, as for zero rows everywhere.
//
// A row may be the parent of many mixtures. Its gradient is summed by one thread in the order of the mixtures, from lists of whose
// parent each row is: no atomics, and the same bits for any number of threads.
#pragma once

#include <algorithm>

#include "core/buffer.h"
#include "core/parallel.h"
#include "engine/rows.h"

namespace pairloom::PAIRLOOM_ISA {

// The mixtures of each parent: those of row r are order[begin[r] .. begin[r + 1]), rising.
struct MixturesOf {
  MixturesOf(const int64_t* parent, int64_t count, int64_t rows) : begin(rows + 1), order(count) {
    std::fill_n(begin.get(), rows + 1, int64_t{0});
    for (int64_t v = 0; v < count; ++v) {
      if (parent[v] >= 0) ++begin[parent[v]];
    }
    int64_t total = 0;
    for (int64_t r = 0; r < rows; ++r) total += begin[r], begin[r] = total;
    begin[rows] = total;
    // From the back, so that `begin` ends where each list begins and lists rise.
    for (int64_t v = count - 1; v >= 0; --v) {
      if (parent[v] >= 0) order[--begin[parent[v]]] = v;
    }
  }

  Buffer<int64_t> begin, order;
};

template <class T>
class Mix {
 public:
  explicit Mix(const MixCall& call) : call_(call), dim_(call.x.dim) {}

  void run(const Parallel& pool) const {
    T* const mixed = static_cast<T*>(call_.mixed);
    parallel_for(pool, call_.count, [&](int64_t begin, int64_t end) {
      Parents parents(*this);
      for (int64_t v = begin; v < end; ++v) {
        T* const out = mixed + v * dim_;
        mixture(parents, v, out);
        if (!call_.normalize) continue;
        const T factor = inverse_length(out);
        for (int64_t k = 0; k < dim_; ++k) out[k] *= factor;
      }
    });
  }

  void gradients(const MixGradientsCall& call, const Parallel& pool) const {
    // g', or where g is stored if that is the same.
    Buffer<T> through(call_.normalize || !readable(call.d_mixed) || call.d_lambda != nullptr ? call_.count * dim_ : 0);
    RowsOf<T> g{through.get(), dim_};
    if (through.get() != nullptr) {
      parallel_for(pool, call_.count, [&](int64_t begin, int64_t end) { through_norms(call, begin, end, through.get()); });
    } else if (call_.count > 0) {
      g = {static_cast<const T*>(call.d_mixed.data), call.d_mixed.row_stride};
    }
    const bool by_partner = call.d_others != nullptr || (call.one_batch && call.d_x != nullptr);
    const bool by_first = call.d_x != nullptr && !call_.in_order;
    const MixturesOf firsts(call_.first, by_first ? call_.count : 0, by_first ? call_.x.rows : 0);
    const MixturesOf partners(call_.partner, by_partner ? call_.count : 0, by_partner ? call_.others.rows : 0);
    if (call.d_x != nullptr) {
      parallel_for(pool, call_.x.rows, [&](int64_t begin, int64_t end) {
        Sum sum(dim_);
        for (int64_t r = begin; r < end; ++r) {
          if (call_.in_order) {
            sum.add(g, r, own_share(r));
          } else {
            for (int64_t i = firsts.begin[r]; i < firsts.begin[r + 1]; ++i) sum.add(g, firsts.order[i], own_share(firsts.order[i]));
          }
          if (call.one_batch) add_partners(sum, g, partners, r);
          sum.take(static_cast<T*>(call.d_x) + r * dim_);
        }
      });
    }
    if (call.d_others != nullptr) {
      parallel_for(pool, call_.others.rows, [&](int64_t begin, int64_t end) {
        Sum sum(dim_);
        for (int64_t r = begin; r < end; ++r) {
          add_partners(sum, g, partners, r);
          sum.take(static_cast<T*>(call.d_others) + r * dim_);
        }
      });
    }
  }

 private:
  // The two rows of a mixture, where they are stored or copied.
  class Parents {
   public:
    explicit Parents(const Mix& mix) : mix_(mix), a_(readable(mix.call_.x) ? 0 : mix.dim_), b_(readable(mix.call_.others) ? 0 : mix.dim_) {}

    const T* first(int64_t v) {
      return rows_in_place(mix_.call_.x, mix_.call_.in_order ? v : mix_.call_.first[v], 1, a_.get(), mix_.dim_).data;
    }
    // Null for a mixture without a partner.
    const T* second(int64_t v) {
      const int64_t partner = mix_.call_.partner[v];
      return partner < 0 ? nullptr : rows_in_place(mix_.call_.others, partner, 1, b_.get(), mix_.dim_).data;
    }

   private:
    const Mix& mix_;
    Buffer<T> a_, b_;
  };

  // A sum of rows: the first stays in the compute type, more are summed in double.
  class Sum {
   public:
    explicit Sum(int64_t dim) : dim_(dim), total_(dim) {}

    void add(RowsOf<T> rows, int64_t row, T factor) {
      const T* const x = rows.data + row * rows.stride;
      if (count_ == 0) {
        first_ = x, factor_ = factor;
      } else {
        if (count_ == 1) {
          for (int64_t k = 0; k < dim_; ++k) total_[k] = static_cast<double>(factor_) * static_cast<double>(first_[k]);
        }
        for (int64_t k = 0; k < dim_; ++k) total_[k] += static_cast<double>(factor) * static_cast<double>(x[k]);
      }
      ++count_;
    }

    void take(T* out) {
      if (count_ == 0) {
        std::fill_n(out, dim_, T{0});
      } else if (count_ == 1) {
        for (int64_t k = 0; k < dim_; ++k) out[k] = factor_ * first_[k];
      } else {
        for (int64_t k = 0; k < dim_; ++k) out[k] = static_cast<T>(total_[k]);
      }
      count_ = 0;
    }

   private:
    int64_t dim_;
    Buffer<double> total_;
    int64_t count_ = 0;
    const T* first_ = nullptr;
    T factor_ = 0;
  };

  static bool readable(const Matrix& m) { return m.dtype == (sizeof(T) == 8 ? DType::f64 : DType::f32) && m.column_stride == 1; }

  double lambda(int64_t v) const { return call_.lambda[call_.lambda_per_row ? v : 0]; }
  T first_share(int64_t v) const { return static_cast<T>(lambda(v)); }
  T second_share(int64_t v) const { return static_cast<T>(1 - lambda(v)); }
  T own_share(int64_t v) const { return call_.partner[v] < 0 ? T{1} : first_share(v); }

  void add_partners(Sum& sum, RowsOf<T> g, const MixturesOf& partners, int64_t r) const {
    for (int64_t i = partners.begin[r]; i < partners.begin[r + 1]; ++i) sum.add(g, partners.order[i], second_share(partners.order[i]));
  }

  void mixture(Parents& parents, int64_t v, T* out) const {
    const T* const a = parents.first(v);
    const T* const b = parents.second(v);
    if (b == nullptr) {
      std::copy_n(a, dim_, out);
    } else {
      const T l = first_share(v), m = second_share(v);
      for (int64_t k = 0; k < dim_; ++k) out[k] = l * a[k] + m * b[k];
    }
  }

  // g' of mixtures [begin, end), and the gradients of their shares.
  void through_norms(const MixGradientsCall& call, int64_t begin, int64_t end, T* through) const {
    Parents parents(*this);
    Buffer<T> mixed(call_.normalize ? dim_ : 0);
    for (int64_t v = begin; v < end; ++v) {
      T* const g = through + v * dim_;
      copy_row(call.d_mixed, v, g, std::min(v + 2, call_.count - 1));
      if (call_.normalize) {
        mixture(parents, v, mixed.get());
        const T factor = inverse_length(mixed.get());
        const T along = dot(g, mixed.get()) * factor * factor;
        for (int64_t k = 0; k < dim_; ++k) g[k] = (g[k] - mixed[k] * along) * factor;
      }
      if (call.d_lambda == nullptr) continue;
      double d_lambda = 0;
      if (const T* const b = parents.second(v)) {
        const T* const a = parents.first(v);
        for (int64_t k = 0; k < dim_; ++k) d_lambda += static_cast<double>(g[k]) * (static_cast<double>(a[k]) - static_cast<double>(b[k]));
      }
      static_cast<T*>(call.d_lambda)[v] = static_cast<T>(d_lambda);
    }
  }

  // Squares are summed in the compute type where that neither overflows nor loses digits.
  T inverse_length(const T* x) const {
    const T squares = dot(x, x);
    return squares > T{1e-18} && squares < T{1e30} ? T{1} / std::sqrt(squares) : inverse_norm(x, dim_);
  }

  T dot(const T* a, const T* b) const {
    vec<T> sums[4] = {};
    int64_t k = 0;
    for (; k + 4 * kLanes<T> <= dim_; k += 4 * kLanes<T>) {
      unroll<4>([&](auto i) PAIRLOOM_LAMBDA_INLINE { sums[i] += load(a + k + i * kLanes<T>) * load(b + k + i * kLanes<T>); });
    }
    T total = sum_lanes<T>((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; k < dim_; ++k) total += a[k] * b[k];
    return total;
  }

  const MixCall& call_;
  const int64_t dim_;
};

}  // namespace pairloom::PAIRLOOM_ISA
