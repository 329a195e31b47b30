// From torch tensors to the plain structs of core/types.h and back. Python has already checked and explained (pyext/pairloom/_checks.py);
// the checks here keep direct callers of the operators (TorchScript, AOTInductor, C++) from reading outside memory.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "core/arguments.h"
#include "core/types.h"
#include "cpu/kernels.h"
#include "torch/check.h"

namespace pairloom {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

DType dtype_of(const Tensor& tensor, const char* name);
Matrix as_matrix(const Tensor& tensor, const char* name);
void check_same_dim(const Tensor& a, const char* a_name, const Tensor& b, const char* b_name);
Reduction parse_reduction(const std::string& name);

// float64 if one of the embeddings is, else float32.
ScalarType compute_type(const Tensor& a, const Tensor& b);

Tensor empty(std::vector<int64_t> sizes, ScalarType type);

// A small float tensor as doubles, and integer labels as contiguous int64.
std::vector<double> read_doubles(const Tensor& tensor, const char* name);
std::optional<Tensor> read_labels(const std::optional<Tensor>& labels, const char* name);

// torch's own threads, lent to the core.
Parallel torch_threads();

template <class Call>
void run(const Kernel<Call>& kernel, ScalarType type, const Call& call) {
  (type == ScalarType::Double ? kernel.f64 : kernel.f32)(call, torch_threads());
}

}  // namespace pairloom
