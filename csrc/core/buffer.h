// Scratch memory: aligned, uninitialised, freed at scope end. Large blocks ask for huge pages, since the kernels walk them with
// strides of a whole row and would otherwise miss the TLB on each step.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace pairloom::PAIRLOOM_ISA {

template <class T>
class Buffer {
 public:
  explicit Buffer(int64_t count) {
    if (count <= 0) return;
    constexpr uint64_t kHugePage = uint64_t{2} << 20;
    const uint64_t bytes = static_cast<uint64_t>(count) * sizeof(T);
    const uint64_t alignment = bytes >= 2 * kHugePage ? kHugePage : 64;
    const uint64_t padded = (bytes + alignment - 1) / alignment * alignment;
    data_ = static_cast<T*>(std::aligned_alloc(alignment, padded));
    if (data_ == nullptr) throw std::bad_alloc();
#if defined(__linux__)
    if (alignment == kHugePage) madvise(data_, padded, MADV_HUGEPAGE);
#endif
  }
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* get() const { return data_; }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
};

}  // namespace pairloom::PAIRLOOM_ISA
