// pairloom::mix_rows, mix_through and sum_parents for tensors of a GPU: see cuda/mix_rows.h. Arguments are contiguous and of one type;
// pyext/pairloom/_device_mix.py, which calls these in place of the operators of the CPU, sees to that.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>

#include "cuda/mix_rows.h"
#include "torch/device.h"

namespace pairloom::cuda {
namespace {

unsigned blocks_for(int64_t rows) { return static_cast<unsigned>(std::min<int64_t>(rows, 1 << 20)); }

const void* matrix(const Tensor& tensor, const char* name, const Tensor& like) {
  const ScalarType type = tensor.scalar_type();
  check(type == ScalarType::Float || type == ScalarType::Double, name, " must be float32 or float64");
  check(on_device(tensor) && same_device(tensor, like) && type == like.scalar_type() && tensor.is_contiguous() && tensor.dim() == 2 &&
            tensor.size(1) == like.size(1),
        name, " must be contiguous rows of the type and length of x, on its device");
  return tensor.const_data_ptr();
}

const int64_t* indices(const Tensor& tensor, const char* name, int64_t count, const Tensor& like) {
  check(same_device(tensor, like) && tensor.scalar_type() == ScalarType::Long && tensor.is_contiguous() && tensor.dim() == 1 &&
            tensor.size(0) == count,
        name, " must be contiguous int64 (", count, ",) on the device of x");
  return static_cast<const int64_t*>(tensor.const_data_ptr());
}

int64_t read_lambda(const Tensor& lambda, int64_t count, const Tensor& like) {
  check(same_device(lambda, like) && lambda.scalar_type() == ScalarType::Double && lambda.is_contiguous() &&
            (lambda.dim() == 0 || (lambda.dim() == 1 && lambda.size(0) == count)),
        "lam must be contiguous float64, one value or (", count, ",), on the device of x");
  return lambda.dim();
}

MixRows as_call(const Tensor& x, const Tensor& others, const std::optional<Tensor>& first, const Tensor& partner, const Tensor& lambda,
                bool normalize) {
  MixRows call{};
  call.x = matrix(x, "x", x);
  call.others = matrix(others, "others", x);
  call.count = partner.size(0);
  call.dim = x.size(1);
  call.partner = indices(partner, "partner", call.count, x);
  if (first.has_value()) {
    call.first = indices(*first, "first", call.count, x);
  } else {
    check(call.count == x.size(0), "partner has ", call.count, " values for ", x.size(0), " rows of x");
  }
  call.lambda_stride = read_lambda(lambda, call.count, x);
  call.lambda = static_cast<const double*>(lambda.const_data_ptr());
  call.normalize = normalize;
  return call;
}

Tensor mix_rows_op(const Tensor& x, const Tensor& others, std::optional<Tensor> first, const Tensor& partner, const Tensor& lambda,
                   bool normalize) {
  MixRows call = as_call(x, others, first, partner, lambda, normalize);
  Tensor out = torch::stable::new_empty(x, {call.count, call.dim}, x.scalar_type());
  call.out = out.mutable_data_ptr();
  if (call.count == 0) return out;
  const DeviceScope scope(x);
  if (x.scalar_type() == ScalarType::Double) {
    PAIRLOOM_LAUNCH((mix_rows<double>), blocks_for(call.count), kThreads, scope.stream(), call);
  } else {
    PAIRLOOM_LAUNCH((mix_rows<float>), blocks_for(call.count), kThreads, scope.stream(), call);
  }
  check_launch("mix_rows");
  return out;
}

std::tuple<Tensor, Tensor> mix_through_op(const Tensor& d_mixed, const Tensor& x, const Tensor& others, std::optional<Tensor> first,
                                          const Tensor& partner, const Tensor& lambda, bool normalize, bool want_lambda) {
  MixRows call = as_call(x, others, first, partner, lambda, normalize);
  call.d_mixed = matrix(d_mixed, "d_mixed", x);
  check(d_mixed.size(0) == call.count, "d_mixed must have a row for each mixture");
  Tensor g = torch::stable::new_empty(x, {call.count, call.dim}, x.scalar_type());
  Tensor d_lambda = torch::stable::new_empty(x, {want_lambda ? call.count : 0}, x.scalar_type());
  call.out = g.mutable_data_ptr();
  if (want_lambda) call.d_lambda = d_lambda.mutable_data_ptr();
  if (call.count == 0) return {g, d_lambda};
  const DeviceScope scope(x);
  if (x.scalar_type() == ScalarType::Double) {
    PAIRLOOM_LAUNCH((mix_through<double>), blocks_for(call.count), kThreads, scope.stream(), call);
  } else {
    PAIRLOOM_LAUNCH((mix_through<float>), blocks_for(call.count), kThreads, scope.stream(), call);
  }
  check_launch("mix_through");
  return {g, d_lambda};
}

Lists as_lists(const std::optional<Tensor>& begin, const std::optional<Tensor>& order, int64_t parents, int64_t count, const Tensor& like) {
  check(begin.has_value() == order.has_value(), "begin and order of a list belong together");
  if (!begin.has_value()) return {nullptr, nullptr};
  return {indices(*begin, "begin", parents + 1, like), indices(*order, "order", count, like)};
}

Tensor sum_parents_op(const Tensor& g, int64_t parents, const Tensor& partner, const Tensor& lambda, bool in_order,
                      std::optional<Tensor> first_begin, std::optional<Tensor> first_order, std::optional<Tensor> partner_begin,
                      std::optional<Tensor> partner_order) {
  SumParents call{};
  call.g = matrix(g, "g", g);
  const int64_t count = g.size(0);
  call.parents = parents;
  call.dim = g.size(1);
  call.partner = indices(partner, "partner", count, g);
  call.lambda_stride = read_lambda(lambda, count, g);
  call.lambda = static_cast<const double*>(lambda.const_data_ptr());
  check(parents >= 0 && (!in_order || parents == count), "there are ", parents, " parents for ", count, " mixtures in order");
  call.in_order = in_order;
  call.firsts = as_lists(first_begin, first_order, parents, count, g);
  call.partners = as_lists(partner_begin, partner_order, parents, count, g);
  Tensor out = torch::stable::new_empty(g, {parents, call.dim}, g.scalar_type());
  call.out = out.mutable_data_ptr();
  if (parents == 0) return out;
  const DeviceScope scope(g);
  if (g.scalar_type() == ScalarType::Double) {
    PAIRLOOM_LAUNCH((sum_parents<double>), blocks_for(parents), kThreads, scope.stream(), call);
  } else {
    PAIRLOOM_LAUNCH((sum_parents<float>), blocks_for(parents), kThreads, scope.stream(), call);
  }
  check_launch("sum_parents");
  return out;
}

}  // namespace

// The schemas stand in mix.cpp.
STABLE_TORCH_LIBRARY_IMPL(pairloom, PAIRLOOM_DEVICE_KEY, library) {
  library.impl("mix_rows", TORCH_BOX(&mix_rows_op));
  library.impl("mix_through", TORCH_BOX(&mix_through_op));
  library.impl("sum_parents", TORCH_BOX(&sum_parents_op));
}

}  // namespace pairloom::cuda
