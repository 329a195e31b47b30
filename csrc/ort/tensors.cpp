#include "ort/tensors.h"

#include <algorithm>
#include <mutex>

namespace pairloom {
namespace {

DType dtype_of(ONNXTensorElementDataType type, const char* name) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      return DType::f32;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
      return DType::f64;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
      return DType::f16;
    default:
      throw InputError(std::string(name) + " has element type " + std::to_string(type) + "; allowed are float, double and float16");
  }
}

struct Release {
  const OrtApi* api;
  OrtTensorTypeAndShapeInfo* info;
  ~Release() { api->ReleaseTensorTypeAndShapeInfo(info); }
};

}  // namespace

Input read_tensor(const OrtApi* api, const OrtValue* tensor, const char* name, size_t dims) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  succeed(api->GetTensorTypeAndShape(tensor, &info));
  const Release release{api, info};
  Input input{};
  size_t count = 0;
  succeed(api->GetTensorElementType(info, &input.type));
  succeed(api->GetDimensionsCount(info, &count));
  input.shape.resize(count);
  succeed(api->GetDimensions(info, input.shape.data(), count));
  if (count != dims) {
    throw InputError(std::string(name) + " has shape " + text_of(input.shape) + "; it must have " + std::to_string(dims) + " dimensions");
  }
  void* data = nullptr;
  succeed(api->GetTensorMutableData(const_cast<OrtValue*>(tensor), &data));  // there is no other function; only read here
  input.data = data;
  return input;
}

Matrix read_matrix(const OrtApi* api, const OrtValue* tensor, const char* name) {
  const Input found = read_tensor(api, tensor, name, 2);
  if (found.shape[1] < 1) {
    throw InputError(std::string(name) + " has shape " + text_of(found.shape) + "; rows must have at least one dimension");
  }
  return {found.data, found.shape[0], found.shape[1], found.shape[1], 1, dtype_of(found.type, name)};
}

thread_local const Context::Pool* Context::current_ = nullptr;

// Whole shares to each thread, as many as there are; what a share throws is thrown here.
void Context::run(int64_t count, Parallel::Task task, void* data) {
  struct Work {
    int64_t count, shares;
    Parallel::Task task;
    void* data;
    std::mutex mutex;
    std::exception_ptr error;
  };
  const Pool& pool = *current_;
  Work work{count, std::min<int64_t>(count, pool.threads), task, data, {}, nullptr};
  if (work.shares <= 1) return task(data, 0, count);
  const auto share = [](void* context, size_t index) {
    Work& whole = *static_cast<Work*>(context);
    const int64_t i = static_cast<int64_t>(index);
    try {
      whole.task(whole.data, whole.count * i / whole.shares, whole.count * (i + 1) / whole.shares);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(whole.mutex);
      whole.error = std::current_exception();
    }
  };
  succeed(pool.api->KernelContext_ParallelFor(pool.context, share, static_cast<size_t>(work.shares), 0, &work));
  if (work.error) std::rethrow_exception(work.error);
}

}  // namespace pairloom
