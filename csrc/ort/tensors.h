// From ONNX Runtime's values to the plain structs of core/types.h. Errors are exceptions inside, and an OrtStatus at the border (guarded).
#pragma once

#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/arguments.h"
#include "ort/abi.h"

namespace pairloom {

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

Input read_tensor(const OrtApi* api, const OrtValue* tensor, const char* name, size_t dims);

// Embeddings (rows, dim).
Matrix read_matrix(const OrtApi* api, const OrtValue* tensor, const char* name);

// The inputs and outputs of one run of a node; dense and in row order.
class Context {
 public:
  Context(const OrtApi* api, OrtKernelContext* context) : api_(api), context_(context) {
    succeed(api->KernelContext_GetInputCount(context, &inputs_));
  }

  bool has(size_t index) const { return index < inputs_ && value(index) != nullptr; }

  Input input(size_t index, const char* name, size_t dims) const { return read_tensor(api_, value(index), name, dims); }
  Matrix matrix(size_t index, const char* name) const { return read_matrix(api_, value(index), name); }

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
  struct Pool {
    const OrtApi* api;
    OrtKernelContext* context;
    int threads;
  };
  struct Restore {
    const Pool* outer;
    ~Restore() { current_ = outer; }
  };

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
