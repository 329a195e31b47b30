// From ONNX Runtime's values to the plain structs of core/types.h. Errors are exceptions inside, and an OrtStatus at the border (guarded).
#pragma once

#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/types.h"
#include "ort/abi.h"

namespace pairloom {

// Bad input, in one sentence.
struct InputError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// What the runtime itself said.
struct StatusError {
  OrtStatus* status;
};

inline void succeed(OrtStatus* status) {
  if (status != nullptr) throw StatusError{status};
}

template <class F>
OrtStatus* guarded(const OrtApi* api, const F& f) noexcept {
  try {
    f();
    return nullptr;
  } catch (const StatusError& error) {
    return error.status;
  } catch (const InputError& error) {
    return api->CreateStatus(ORT_INVALID_ARGUMENT, error.what());
  } catch (const std::exception& error) {
    return api->CreateStatus(ORT_FAIL, error.what());
  }
}

struct Input {
  const void* data;
  ONNXTensorElementDataType type;
  std::vector<int64_t> shape;
};

inline std::string text_of(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (int64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + ")";
}

// The inputs and outputs of one run of a node; dense and in row order.
class Context {
 public:
  Context(const OrtApi* api, OrtKernelContext* context) : api_(api), context_(context) {
    succeed(api->KernelContext_GetInputCount(context, &inputs_));
  }

  bool has(size_t index) const { return index < inputs_ && value(index) != nullptr; }

  Input input(size_t index, const char* name, size_t dims) const {
    const OrtValue* tensor = value(index);
    OrtTensorTypeAndShapeInfo* info = nullptr;
    succeed(api_->GetTensorTypeAndShape(tensor, &info));
    const Release release{api_, info};
    Input input{};
    size_t count = 0;
    succeed(api_->GetTensorElementType(info, &input.type));
    succeed(api_->GetDimensionsCount(info, &count));
    input.shape.resize(count);
    succeed(api_->GetDimensions(info, input.shape.data(), count));
    if (count != dims)
      throw InputError(std::string(name) + " has shape " + text_of(input.shape) + "; it must have " + std::to_string(dims) + " dimensions");
    void* data = nullptr;
    succeed(api_->GetTensorMutableData(const_cast<OrtValue*>(tensor), &data));  // there is no other function; only read here
    input.data = data;
    return input;
  }

  // Embeddings (rows, dim).
  Matrix matrix(size_t index, const char* name) const {
    const Input found = input(index, name, 2);
    if (found.shape[1] < 1)
      throw InputError(std::string(name) + " has shape " + text_of(found.shape) + "; rows must have at least one dimension");
    return {found.data, found.shape[0], found.shape[1], found.shape[1], 1, dtype_of(found.type, name)};
  }

  template <class T>
  T* output(size_t index, std::vector<int64_t> shape) const {
    OrtValue* tensor = nullptr;
    succeed(api_->KernelContext_GetOutput(context_, index, shape.data(), shape.size(), &tensor));
    void* data = nullptr;
    succeed(api_->GetTensorMutableData(tensor, &data));
    return static_cast<T*>(data);
  }

  // The runtime's threads; valid on this thread until `f` returns. The core's function pointer has no place for a context of its own.
  template <class F>
  void with_threads(int threads, const F& f) const {
    const Pool pool{api_, context_, threads};
    const Pool* const outer = std::exchange(current_, &pool);
    const Restore restore{outer};
    f(Parallel{&run, threads});
  }

 private:
  struct Release {
    const OrtApi* api;
    OrtTensorTypeAndShapeInfo* info;
    ~Release() { api->ReleaseTensorTypeAndShapeInfo(info); }
  };
  struct Pool {
    const OrtApi* api;
    OrtKernelContext* context;
    int threads;
  };
  struct Restore {
    const Pool* outer;
    ~Restore() { current_ = outer; }
  };

  static DType dtype_of(ONNXTensorElementDataType type, const char* name) {
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

  const OrtValue* value(size_t index) const {
    const OrtValue* found = nullptr;
    succeed(api_->KernelContext_GetInput(context_, index, &found));
    return found;
  }

  static void run(int64_t count, Parallel::Task task, void* data);

  static thread_local const Pool* current_;

  const OrtApi* api_;
  OrtKernelContext* context_;
  size_t inputs_ = 0;
};

}  // namespace pairloom
