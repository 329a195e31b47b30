// Mixtures of pairs of rows on the GPU, and the way back: what engine/mix.h does on the CPU, a block of threads for each mixture and, in
// the sums of gradients, for each parent. Which mixtures a parent has comes as lists (pyext/pairloom/_device_mix.py sorts them), each
// summed in its order: no atomics, the same bits on every run.
#pragma once

#include <cmath>

#include "core/types.h"
#include "cuda/block.h"

namespace pairloom::cuda {

// Contiguous rows in the compute type; all pointers are the device's.
struct MixRows {
  const void* x;       // (N, dim)
  const void* others;  // (M, dim)
  int64_t count, dim;
  const int64_t* first;    // (count) rows of x, or null: 0, 1, ...
  const int64_t* partner;  // (count) rows of others, or -1
  const double* lambda;    // (count), or one value where lambda_stride is 0
  int64_t lambda_stride;
  bool normalize;
  void* out;            // (count, dim): mixtures; or, of mix_through, g'
  const void* d_mixed;  // (count, dim), of mix_through
  void* d_lambda;       // (count) or null, of mix_through
};

template <class T>
struct Shares {
  T first, second;
  bool alone;
};
template <class T>
__device__ Shares<T> shares_of(const MixRows& call, int64_t v) {
  const double lambda = call.lambda[v * call.lambda_stride];
  if (call.partner[v] < 0) return {T{1}, T{0}, true};
  return {static_cast<T>(lambda), static_cast<T>(1 - lambda), false};
}

template <class T>
__device__ const T* first_row(const MixRows& call, int64_t v) {
  return static_cast<const T*>(call.x) + (call.first == nullptr ? v : call.first[v]) * call.dim;
}
template <class T>
__device__ const T* second_row(const MixRows& call, int64_t v) {
  return call.partner[v] < 0 ? nullptr : static_cast<const T*>(call.others) + call.partner[v] * call.dim;
}

// Number k of mixture v.
template <class T>
__device__ T mixed_at(const Shares<T>& share, const T* a, const T* b, int64_t k) {
  return share.alone ? a[k] : share.first * a[k] + share.second * b[k];
}

// 1 / |v|, 0 below the norm floor. Squares are of numbers divided by the largest: they overflow for no length.
template <class T>
__device__ T inverse_length(const MixRows& call, const Shares<T>& share, const T* a, const T* b, WarpResults<double>& results) {
  double largest = 0;
  for (int64_t k = threadIdx.x; k < call.dim; k += kThreads) {
    const double x = std::fabs(static_cast<double>(mixed_at(share, a, b, k)));
    if (x > largest) largest = x;
  }
  largest = largest_in_block(largest, results);
  const double scale = largest > 1e-30 ? 1 / largest : 1.0;
  double squares = 0;
  for (int64_t k = threadIdx.x; k < call.dim; k += kThreads) {
    const double x = static_cast<double>(mixed_at(share, a, b, k)) * scale;
    squares += x * x;
  }
  squares = sum_over_block(squares, results);
  const double norm = std::sqrt(squares) / scale;
  return norm < kNormFloor ? T{0} : static_cast<T>(scale / std::sqrt(squares));
}

template <class T>
__global__ void mix_rows(const MixRows call) {
  __shared__ WarpResults<double> results;
  for (int64_t v = blockIdx.x; v < call.count; v += gridDim.x) {
    const Shares<T> share = shares_of<T>(call, v);
    const T* const a = first_row<T>(call, v);
    const T* const b = second_row<T>(call, v);
    T* const out = static_cast<T*>(call.out) + v * call.dim;
    const T factor = call.normalize ? inverse_length(call, share, a, b, results) : T{1};
    for (int64_t k = threadIdx.x; k < call.dim; k += kThreads) {
      const T value = mixed_at(share, a, b, k);
      out[k] = call.normalize ? value * factor : value;
    }
  }
}

// g' of the mixtures: the gradient before they were normalised; and of the shares.
template <class T>
__global__ void mix_through(const MixRows call) {
  __shared__ WarpResults<double> results;
  for (int64_t v = blockIdx.x; v < call.count; v += gridDim.x) {
    const Shares<T> share = shares_of<T>(call, v);
    const T* const a = first_row<T>(call, v);
    const T* const b = second_row<T>(call, v);
    const T* const g = static_cast<const T*>(call.d_mixed) + v * call.dim;
    T* const out = static_cast<T*>(call.out) + v * call.dim;
    T factor = T{1}, along = T{0};
    if (call.normalize) {
      factor = inverse_length(call, share, a, b, results);
      double product = 0;
      for (int64_t k = threadIdx.x; k < call.dim; k += kThreads) {
        product += static_cast<double>(g[k]) * static_cast<double>(mixed_at(share, a, b, k) * factor);
      }
      along = static_cast<T>(sum_over_block(product, results));
    }
    double d_lambda = 0;
    for (int64_t k = threadIdx.x; k < call.dim; k += kThreads) {
      const T value = call.normalize ? (g[k] - mixed_at(share, a, b, k) * factor * along) * factor : g[k];
      out[k] = value;
      if (b != nullptr) d_lambda += static_cast<double>(value) * (static_cast<double>(a[k]) - static_cast<double>(b[k]));
    }
    if (call.d_lambda == nullptr) continue;
    d_lambda = sum_over_block(d_lambda, results);
    if (threadIdx.x == 0) static_cast<T*>(call.d_lambda)[v] = static_cast<T>(d_lambda);
  }
}

// Lists of mixtures: those of parent r are order[begin[r] .. begin[r + 1]).
struct Lists {
  const int64_t* begin;  // null: none
  const int64_t* order;
};
struct SumParents {
  const void* g;  // (count, dim)
  int64_t parents, dim;
  const int64_t* partner;
  const double* lambda;
  int64_t lambda_stride;
  bool in_order;  // parent r is the first of mixture r; otherwise `firsts` says of which
  Lists firsts, partners;
  void* out;  // (parents, dim)
};

template <class T>
__device__ double list_sum(const SumParents& call, const Lists& lists, bool of_firsts, int64_t r, int64_t k) {
  double sum = 0;
  for (int64_t i = lists.begin[r]; i < lists.begin[r + 1]; ++i) {
    const int64_t v = lists.order[i];
    const double lambda = call.lambda[v * call.lambda_stride];
    const double share = !of_firsts ? 1 - lambda : call.partner[v] < 0 ? 1.0 : lambda;
    sum += share * static_cast<double>(static_cast<const T*>(call.g)[v * call.dim + k]);
  }
  return sum;
}

template <class T>
__global__ void sum_parents(const SumParents call) {
  for (int64_t r = blockIdx.x; r < call.parents; r += gridDim.x) {
    for (int64_t k = threadIdx.x; k < call.dim; k += kThreads) {
      double sum = 0;
      if (call.in_order) {
        const double share = call.partner[r] < 0 ? 1.0 : call.lambda[r * call.lambda_stride];
        sum += share * static_cast<double>(static_cast<const T*>(call.g)[r * call.dim + k]);
      }
      if (call.firsts.begin != nullptr) sum += list_sum<T>(call, call.firsts, true, r, k);
      if (call.partners.begin != nullptr) sum += list_sum<T>(call, call.partners, false, r, k);
      static_cast<T*>(call.out)[r * call.dim + k] = static_cast<T>(sum);
    }
  }
}

}  // namespace pairloom::cuda
