// The one file that knows of torch's streams and devices; on the host (tests/cuda_host) there is one device and no stream.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include "torch/check.h"

#if defined(PAIRLOOM_CUDA_ON_HOST)
#define PAIRLOOM_DEVICE_KEY CPU
#else
#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#define PAIRLOOM_DEVICE_KEY CUDA
#endif

namespace pairloom::cuda {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

#if defined(PAIRLOOM_CUDA_ON_HOST)

inline bool on_device(const Tensor&) { return true; }
inline bool same_device(const Tensor&, const Tensor&) { return true; }

struct DeviceScope {
  explicit DeviceScope(const Tensor&) {}
  void* stream() const { return nullptr; }
};

inline void check_launch(const char*) {}

#else

inline bool on_device(const Tensor& tensor) { return tensor.is_cuda(); }
inline bool same_device(const Tensor& a, const Tensor& b) { return a.is_cuda() && a.get_device_index() == b.get_device_index(); }

// The device of a tensor is the current one as long as this lives; its current stream.
class DeviceScope {
 public:
  explicit DeviceScope(const Tensor& tensor) : guard_(tensor.get_device_index()), index_(tensor.get_device_index()) {}
  void* stream() const {
    void* stream = nullptr;
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(index_, &stream));
    return stream;
  }

 private:
  torch::stable::accelerator::DeviceGuard guard_;
  int32_t index_;
};

inline void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  check(error == cudaSuccess, kernel, " could not be started: ", cudaGetErrorString(error));
}

#endif

}  // namespace pairloom::cuda
