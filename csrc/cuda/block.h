// What kernels ask of a block of threads: sums and extremes over all of it. Written in the subset of CUDA that tests/cuda_host runs on
// the host with one thread of the system for each thread of a block: barriers and shuffles of whole warps, no atomics.
#pragma once

#include <cstdint>

#if !defined(PAIRLOOM_CUDA_ON_HOST)  // there tests/cuda_host/on_host.h is included before all else
#include <cuda_runtime.h>
#define PAIRLOOM_LAUNCH(kernel, blocks, threads, stream, ...) kernel<<<blocks, threads, 0, static_cast<cudaStream_t>(stream)>>>(__VA_ARGS__)
#endif

namespace pairloom::cuda {

constexpr int kWarp = 32;
#ifndef PAIRLOOM_CUDA_THREADS
#define PAIRLOOM_CUDA_THREADS 256  // of a block; fewer on the host, where each is a thread of the system
#endif
constexpr int kThreads = PAIRLOOM_CUDA_THREADS;
constexpr int kWarps = kThreads / kWarp;
constexpr unsigned kWholeWarp = 0xffffffffu;

// Room for one number of every warp.
template <class T>
struct WarpResults {
  T values[kWarps];
};

// combine(...) over the values of all threads, in the same order on every run; all threads get it. `results` is free again afterwards.
template <class T, class Combine>
__device__ T over_block(T value, WarpResults<T>& results, const Combine& combine) {
  for (int step = kWarp / 2; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(kWholeWarp, value, step));
  if (threadIdx.x % kWarp == 0) results.values[threadIdx.x / kWarp] = value;
  __syncthreads();
  T all = results.values[0];
  for (int warp = 1; warp < kWarps; ++warp) all = combine(all, results.values[warp]);
  __syncthreads();
  return all;
}

template <class T>
__device__ T sum_over_block(T value, WarpResults<T>& results) {
  return over_block(value, results, [](T a, T b) { return a + b; });
}

// A NaN is passed over, from whichever side it comes: no extreme starts as one.
template <class T>
__device__ T largest_in_block(T value, WarpResults<T>& results) {
  return over_block(value, results, [](T a, T b) { return b > a ? b : a; });
}
template <class T>
__device__ T smallest_in_block(T value, WarpResults<T>& results) {
  return over_block(value, results, [](T a, T b) { return b < a ? b : a; });
}

}  // namespace pairloom::cuda
