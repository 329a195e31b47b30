#include "core/scratch.h"

#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>
#if defined(__linux__)
#include <pthread.h>
#include <sys/mman.h>
#endif

namespace pairloom {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;

uint64_t rounded(uint64_t bytes) {
  const uint64_t unit = bytes >= kHugePage ? kHugePage : 4096;
  return (bytes + unit - 1) / unit * unit;
}

struct Block {
  void* data;
  uint64_t bytes;
};

// Most recently used last. Never destroyed: threads may still run when static objects go.
struct Retained {
  std::mutex mutex;
  std::vector<Block> blocks;
  uint64_t total = 0;
};

Retained& retained();

// A child process has no thread that would unlock what another thread of its parent had locked.
Retained* make_retained() {
#if defined(__linux__)
  const auto lock = [] { retained().mutex.lock(); };
  const auto unlock = [] { retained().mutex.unlock(); };
  pthread_atfork(lock, unlock, unlock);
#endif
  return new Retained;
}

Retained& retained() {
  static Retained* instance = make_retained();
  return *instance;
}

}  // namespace

void* acquire_scratch(uint64_t bytes) {
  const uint64_t size = rounded(bytes);
  {
    Retained& kept = retained();
    const std::lock_guard<std::mutex> lock(kept.mutex);
    for (size_t i = kept.blocks.size(); i-- > 0;) {
      if (kept.blocks[i].bytes != size) continue;
      void* data = kept.blocks[i].data;
      kept.blocks.erase(kept.blocks.begin() + static_cast<std::ptrdiff_t>(i));
      kept.total -= size;
      return data;
    }
  }
  void* data = std::aligned_alloc(size >= kHugePage ? kHugePage : 4096, size);
  if (data == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  // The kernels walk these blocks with strides of a whole row: with small pages they would miss the TLB on each step.
  if (size >= kHugePage) madvise(data, size, MADV_HUGEPAGE);
#endif
  return data;
}

void release_scratch(void* block, uint64_t bytes) {
  if (block == nullptr) return;
  const uint64_t size = rounded(bytes);
  std::vector<void*> dropped;
  {
    Retained& kept = retained();
    const std::lock_guard<std::mutex> lock(kept.mutex);
    kept.blocks.push_back({block, size});
    kept.total += size;
    while (kept.total > kRetainedScratch) {  // the least recently used go first
      kept.total -= kept.blocks.front().bytes;
      dropped.push_back(kept.blocks.front().data);
      kept.blocks.erase(kept.blocks.begin());
    }
  }
  for (void* data : dropped) std::free(data);
}

}  // namespace pairloom
