// pairloom::mix and pairloom::mix_gradients for CPU tensors: see engine/mix.h.
#include "torch/tensors.h"

namespace pairloom {
namespace {

enum MixGradient { kGradientOfX = 1, kGradientOfOthers = 2, kGradientOfLambda = 4 };

// Owns what the call points into.
class MixArguments {
 public:
  MixArguments(const Tensor& x, const std::optional<Tensor>& others, const std::optional<Tensor>& first, const Tensor& partner,
               const Tensor& lam, bool normalize)
      : type(compute_type(x, others.value_or(x))), partner_(indices(partner, "partner")), lambda_(read_doubles(lam, "lam")) {
    call.x = as_matrix(x, "x");
    call.others = others.has_value() ? as_matrix(*others, "others") : call.x;
    if (others.has_value()) check_same_dim(x, "x", *others, "others");
    call.count = partner_.numel();
    call.partner = read(partner_, "partner", call.count, -1, call.others.rows);
    call.in_order = !first.has_value();
    if (first.has_value()) {
      first_ = indices(*first, "first");
      call.first = read(*first_, "first", call.count, 0, call.x.rows);
    } else {
      check(call.count == call.x.rows, "partner has ", call.count, " values for ", call.x.rows,
            " rows of x; without first there is one each");
    }
    call.lambda = lambda_.data();
    call.lambda_per_row = lam.dim() == 1;
    check(!call.lambda_per_row || lam.numel() == call.count, "lam has ", lam.numel(), " values for ", call.count, " mixtures");
    call.normalize = normalize;
  }

  MixCall call{};
  ScalarType type;

 private:
  static Tensor indices(const Tensor& tensor, const char* name) {
    check(tensor.is_cpu(), name, " is on another device; this kernel runs on the CPU");
    check(tensor.dim() == 1 && tensor.scalar_type() == ScalarType::Long, name, " must be (mixtures,) int64");
    return torch::stable::contiguous(tensor);
  }

  static const int64_t* read(const Tensor& tensor, const char* name, int64_t count, int64_t lowest, int64_t rows) {
    check(tensor.numel() == count, name, " has ", tensor.numel(), " values for ", count, " mixtures");
    const int64_t* values = static_cast<const int64_t*>(tensor.const_data_ptr());
    for (int64_t v = 0; v < count; ++v) {
      check(lowest <= values[v] && values[v] < rows, name, " holds ", values[v], ", which is none of ", rows, " rows");
    }
    return values;
  }

  Tensor partner_;
  std::optional<Tensor> first_;
  std::vector<double> lambda_;
};

Tensor mix(const Tensor& x, std::optional<Tensor> others, std::optional<Tensor> first, const Tensor& partner, const Tensor& lam,
           bool normalize) {
  MixArguments arguments(x, others, first, partner, lam, normalize);
  MixCall& call = arguments.call;
  Tensor mixed = empty({call.count, call.x.dim}, arguments.type);
  call.mixed = mixed.mutable_data_ptr();
  run(kernels().mix, arguments.type, call);
  return mixed;
}

std::tuple<Tensor, Tensor, Tensor> mix_gradients(const Tensor& d_mixed, const Tensor& x, std::optional<Tensor> others,
                                                 std::optional<Tensor> first, const Tensor& partner, const Tensor& lam, bool normalize,
                                                 int64_t needs_grad) {
  MixArguments arguments(x, others, first, partner, lam, normalize);
  const MixCall& known = arguments.call;
  MixGradientsCall call{.mix = known,
                        .d_mixed = as_matrix(d_mixed, "d_mixed"),
                        .one_batch = !others.has_value(),
                        .d_x = nullptr,
                        .d_others = nullptr,
                        .d_lambda = nullptr};
  check(call.d_mixed.rows == known.count && call.d_mixed.dim == known.x.dim, "d_mixed must have the shape of what mix returned");
  const auto wanted = [&](MixGradient which, std::vector<int64_t> sizes) {
    const bool made = (needs_grad & which) != 0;
    if (!made) sizes[0] = 0;
    Tensor tensor = empty(sizes, arguments.type);
    return std::pair{tensor, made ? tensor.mutable_data_ptr() : nullptr};
  };
  const auto [d_x, d_x_data] = wanted(kGradientOfX, {known.x.rows, known.x.dim});
  const auto [d_others, d_others_data] = wanted(kGradientOfOthers, {known.others.rows, known.x.dim});
  const auto [d_lambda, d_lambda_data] = wanted(kGradientOfLambda, {known.count});
  call.d_x = d_x_data, call.d_others = d_others_data, call.d_lambda = d_lambda_data;
  run(kernels().mix_gradients, arguments.type, call);
  return {d_x, d_others, d_lambda};
}

}  // namespace

#define PAIRLOOM_MIX_ARGUMENTS "Tensor x, Tensor? others, Tensor? first, Tensor partner, Tensor lam, bool normalize"

STABLE_TORCH_LIBRARY_FRAGMENT(pairloom, library) {
  library.def("mix(" PAIRLOOM_MIX_ARGUMENTS ") -> Tensor");
  library.def("mix_gradients(Tensor d_mixed, " PAIRLOOM_MIX_ARGUMENTS ", int needs_grad) -> (Tensor d_x, Tensor d_others, Tensor d_lam)");
  // Parts of these on another device, whose kernels mix_rows.cu has; here there are none.
  library.def("mix_rows(Tensor x, Tensor others, Tensor? first, Tensor partner, Tensor lam, bool normalize) -> Tensor");
  library.def(
      "mix_through(Tensor d_mixed, Tensor x, Tensor others, Tensor? first, Tensor partner, Tensor lam, bool normalize, bool want_lambda) "
      "-> (Tensor g, Tensor d_lam)");
  library.def(
      "sum_parents(Tensor g, int parents, Tensor partner, Tensor lam, bool in_order, Tensor? first_begin, Tensor? first_order, "
      "Tensor? partner_begin, Tensor? partner_order) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(pairloom, CPU, library) {
  library.impl("mix", TORCH_BOX(&mix));
  library.impl("mix_gradients", TORCH_BOX(&mix_gradients));
}

}  // namespace pairloom
