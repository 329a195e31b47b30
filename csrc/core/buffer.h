// Scratch memory: aligned, uninitialised, given back at scope end.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

#include "core/scratch.h"
#include "core/simd.h"

namespace pairloom::PAIRLOOM_ISA {

template <class T>
class Buffer {
 public:
  explicit Buffer(int64_t count) : bytes_(static_cast<uint64_t>(count > 0 ? count : 0) * sizeof(T)) {
    if (bytes_ == 0) return;
    data_ = static_cast<T*>(large() ? acquire_scratch(bytes_) : std::aligned_alloc(64, (bytes_ + 63) / 64 * 64));
    if (data_ == nullptr) throw std::bad_alloc();
  }
  ~Buffer() {
    if (large()) {
      release_scratch(data_, bytes_);
    } else {
      std::free(data_);
    }
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* get() const { return data_; }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  bool large() const { return bytes_ >= uint64_t{64} << 10; }

  uint64_t bytes_;
  T* data_ = nullptr;
};

}  // namespace pairloom::PAIRLOOM_ISA
