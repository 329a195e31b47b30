// Runs the kernels of csrc/cuda on the host, unmodified: every thread of a block is a thread of the system, blocks run one after the
// other. Barriers are barriers, shuffles exchange through memory between two barriers of the warp. So AddressSanitizer sees every
// address and ThreadSanitizer every race that the kernel's own barriers do not exclude; a thread that leaves a barrier out hangs or races.
#pragma once

#define PAIRLOOM_CUDA_ON_HOST

#include <barrier>
#include <cstdint>
#include <cstring>
#include <deque>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static  // blocks do not overlap
#define PAIRLOOM_LAUNCH(kernel, blocks, threads, stream, ...) \
  ::pairloom::cuda::on_host::launch(blocks, threads, [&] { (kernel)(__VA_ARGS__); })

namespace pairloom::cuda {

struct Index {
  unsigned x;
};
inline thread_local Index threadIdx, blockIdx, gridDim, blockDim;

namespace on_host {

constexpr unsigned kWarpThreads = 32;

struct Block {
  explicit Block(unsigned threads) : all(threads), exchange(threads) {
    for (unsigned first = 0; first < threads; first += kWarpThreads) warps.emplace_back(static_cast<std::ptrdiff_t>(kWarpThreads));
  }

  std::barrier<> all;
  std::deque<std::barrier<>> warps;
  std::vector<uint64_t> exchange;
};
inline thread_local Block* block = nullptr;

template <class Body>
void launch(unsigned blocks, unsigned threads, const Body& body) {
  Block shared(threads);
  std::vector<std::thread> all;
  for (unsigned t = 0; t < threads; ++t) {
    all.emplace_back([&, t] {
      block = &shared;
      threadIdx = {t}, blockDim = {threads}, gridDim = {blocks};
      for (unsigned b = 0; b < blocks; ++b) {
        blockIdx = {b};
        body();
        shared.all.arrive_and_wait();
      }
    });
  }
  for (std::thread& thread : all) thread.join();
}

}  // namespace on_host

inline void __syncthreads() { on_host::block->all.arrive_and_wait(); }
inline void __syncwarp() { on_host::block->warps[threadIdx.x / on_host::kWarpThreads].arrive_and_wait(); }

template <class T>
T __shfl_xor_sync(unsigned, T value, int lanes) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  std::vector<uint64_t>& exchange = on_host::block->exchange;
  std::memcpy(&exchange[threadIdx.x], &value, sizeof value);
  __syncwarp();
  std::memcpy(&value, &exchange[threadIdx.x ^ static_cast<unsigned>(lanes)], sizeof value);
  __syncwarp();
  return value;
}

}  // namespace pairloom::cuda
