#include "torch/tensors.h"

namespace pairloom {

DType dtype_of(const Tensor& tensor, const char* name) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float:
      return DType::f32;
    case ScalarType::Double:
      return DType::f64;
    case ScalarType::Half:
      return DType::f16;
    case ScalarType::BFloat16:
      return DType::bf16;
    default:
      throw std::runtime_error(std::string(name) + " has dtype " + torch::headeronly::toString(tensor.scalar_type()) +
                               "; allowed are float32, float64, float16 and bfloat16");
  }
}

Matrix as_matrix(const Tensor& tensor, const char* name) {
  check(tensor.is_cpu(), name, " is on another device; this kernel runs on the CPU");
  check(tensor.dim() == 2, name, " has ", tensor.dim(), " dimensions; expected 2 (rows, dim)");
  check(tensor.size(1) >= 1, name, " has rows of length 0; expected at least 1");
  return Matrix{.data = tensor.const_data_ptr(),
                .rows = tensor.size(0),
                .dim = tensor.size(1),
                .row_stride = tensor.stride(0),
                .column_stride = tensor.stride(1),
                .dtype = dtype_of(tensor, name)};
}

void check_same_dim(const Tensor& a, const char* a_name, const Tensor& b, const char* b_name) {
  check(a.size(1) == b.size(1), b_name, " has rows of length ", b.size(1), ", but ", a_name, " has rows of length ", a.size(1));
}

Reduction parse_reduction(const std::string& name) {
  if (name == "mean" || name == "mean_all") return Reduction::mean;
  if (name == "mean_nonzero") return Reduction::mean_nonzero;
  if (name == "sum") return Reduction::sum;
  if (name == "none") return Reduction::none;
  throw std::runtime_error("reduction is '" + name + "'; allowed are 'mean', 'mean_all', 'mean_nonzero', 'sum' and 'none'");
}

ScalarType compute_type(const Tensor& a, const Tensor& b) {
  const bool wide = a.scalar_type() == ScalarType::Double || b.scalar_type() == ScalarType::Double;
  return wide ? ScalarType::Double : ScalarType::Float;
}

Tensor empty(std::vector<int64_t> sizes, ScalarType type) { return torch::stable::empty(sizes, type); }

std::vector<double> read_doubles(const Tensor& tensor, const char* name) {
  check(tensor.is_cpu(), name, " is on another device; this kernel runs on the CPU");
  check(tensor.dim() <= 1, name, " has ", tensor.dim(), " dimensions; expected a scalar or one value per row");
  dtype_of(tensor, name);
  const Tensor wide = torch::stable::contiguous(torch::stable::to(tensor, ScalarType::Double));
  const double* values = wide.const_data_ptr<double>();
  return std::vector<double>(values, values + wide.numel());
}

std::optional<Tensor> read_labels(const std::optional<Tensor>& labels, const char* name) {
  if (!labels.has_value()) return std::nullopt;
  check(labels->is_cpu(), name, " is on another device; this kernel runs on the CPU");
  check(labels->dim() == 1 || (labels->dim() == 2 && labels->size(1) > 0), name, " has ", labels->dim(),
        " dimensions; expected (rows,) ids or (rows, words) multi-hot");
  check(labels->scalar_type() == ScalarType::Long, name, " has dtype ", torch::headeronly::toString(labels->scalar_type()),
        "; the operator takes int64");
  return torch::stable::contiguous(*labels);
}

Parallel torch_threads() {
  return Parallel{.run =
                      [](int64_t count, Parallel::Task task, void* context) {
                        torch::stable::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) { task(context, begin, end); });
                      },
                  .threads = static_cast<int>(torch::stable::get_num_threads())};
}

}  // namespace pairloom
