// pairloom::mixture_sums and pairloom::mixture_gradients for CPU tensors: see engine/mixtures.h. Everything is contiguous and of one type.
#include "torch/tensors.h"

namespace pairloom {
namespace {

MixtureTerm parse_term(const std::string& name) {
  if (name == "linear") return MixtureTerm::linear;
  if (name == "hinge") return MixtureTerm::hinge;
  if (name == "softplus") return MixtureTerm::softplus;
  if (name == "exponential") return MixtureTerm::exponential;
  throw std::runtime_error("term is '" + name + "'; allowed are 'linear', 'hinge', 'softplus' and 'exponential'");
}

void check_dense(const Tensor& tensor, const char* name, ScalarType type, std::vector<int64_t> sizes) {
  check(tensor.is_cpu(), name, " is on another device; this kernel runs on the CPU");
  check(tensor.scalar_type() == type && tensor.is_contiguous(), name, " must be contiguous ", torch::headeronly::toString(type));
  bool same = tensor.dim() == static_cast<int64_t>(sizes.size());
  for (size_t i = 0; same && i < sizes.size(); ++i) same = tensor.size(static_cast<int64_t>(i)) == sizes[i];
  check(same, name, " has a shape that does not fit");
}

const int64_t* places(const Tensor& tensor, const char* name, int64_t count) {
  check_dense(tensor, name, ScalarType::Long, {count});
  return static_cast<const int64_t*>(tensor.const_data_ptr());
}

MixturesCall as_call(const Tensor& s, const Tensor& among, int64_t among_first, const Tensor& begin, const Tensor& end, const Tensor& own,
                     const Tensor& lambda, const std::string& pairs, const std::string& positive_term, double positive_scale,
                     double positive_offset, const std::string& negative_term, double negative_scale, double negative_offset) {
  const ScalarType type = s.scalar_type();
  check(type == ScalarType::Float || type == ScalarType::Double, "s has dtype ", torch::headeronly::toString(type),
        "; allowed are float32 and float64");
  check(s.dim() == 2 && among.dim() == 2, "s and among must be matrices");
  check_dense(s, "s", type, {s.size(0), s.size(1)});
  check_dense(among, "among", type, {among.size(0), s.size(1)});
  check(pairs == "positive_negative" || pairs == "anchor_negative" || pairs == "both", "pairs is '", pairs,
        "'; allowed are 'positive_negative', 'anchor_negative' and 'both'");
  MixturesCall call{};
  call.s = s.const_data_ptr();
  call.among = among.const_data_ptr();
  call.anchors = s.size(0);
  call.columns = s.size(1);
  call.among_first = among_first;
  call.among_rows = among.size(0);
  call.begin = places(begin, "begin", call.anchors);
  call.end = places(end, "end", call.anchors);
  call.own = places(own, "own", call.anchors);
  call.positives = pairs != "anchor_negative";
  call.self = pairs != "positive_negative";
  for (int64_t a = 0; a < call.anchors; ++a) {
    const int64_t b = call.begin[a], e = call.end[a], o = call.own[a];
    check(0 <= b && b <= e && e <= call.columns && -1 <= o && o < call.columns, "begin, end or own of anchor ", a, " are no columns");
    check(!call.positives || b == e || (among_first <= b && e <= among_first + call.among_rows), "among does not hold the class of anchor ",
          a);
    check(a == 0 || b >= call.begin[a - 1], "anchors must be sorted by class");
  }
  check(lambda.scalar_type() == type && lambda.is_cpu() && lambda.is_contiguous(), "lambda must be contiguous and of the type of s");
  call.lambda = lambda.const_data_ptr();
  call.lambda_by_pair = lambda.dim() == 2;
  if (call.lambda_by_pair) {
    check(pairs != "both", "lambda of every pair needs pairs of one kind");
    check_dense(lambda, "lambda", type, {call.self ? call.anchors : call.among_rows, call.columns});
  } else if (lambda.dim() == 1) {
    check_dense(lambda, "lambda", type, {call.anchors});
    call.lambda_anchor_stride = 1;
  }
  call.positive = {parse_term(positive_term), positive_scale, positive_offset};
  call.negative = {parse_term(negative_term), negative_scale, negative_offset};
  return call;
}

void run_mixtures(const MixturesCall& call, ScalarType type) {
  if (call.anchors > 0) run(kernels().mixtures, type, call);
}

Tensor mixture_sums(const Tensor& s, const Tensor& among, int64_t among_first, const Tensor& begin, const Tensor& end, const Tensor& own,
                    const Tensor& lambda, const std::string& pairs, const std::string& positive_term, double positive_scale,
                    double positive_offset, const std::string& negative_term, double negative_scale, double negative_offset) {
  MixturesCall call = as_call(s, among, among_first, begin, end, own, lambda, pairs, positive_term, positive_scale, positive_offset,
                              negative_term, negative_scale, negative_offset);
  Tensor sums = empty({call.anchors, 2}, s.scalar_type());
  call.sums = sums.mutable_data_ptr();
  run_mixtures(call, s.scalar_type());
  return sums;
}

std::tuple<Tensor, Tensor> mixture_gradients(const Tensor& s, const Tensor& among, int64_t among_first, const Tensor& begin,
                                             const Tensor& end, const Tensor& own, const Tensor& lambda, const std::string& pairs,
                                             const std::string& positive_term, double positive_scale, double positive_offset,
                                             const std::string& negative_term, double negative_scale, double negative_offset,
                                             const Tensor& d_sums) {
  const ScalarType type = s.scalar_type();
  MixturesCall call = as_call(s, among, among_first, begin, end, own, lambda, pairs, positive_term, positive_scale, positive_offset,
                              negative_term, negative_scale, negative_offset);
  check_dense(d_sums, "d_sums", type, {call.anchors, 2});
  Tensor sums = empty({call.anchors, 2}, type);
  Tensor d_s = torch::stable::fill_(empty({call.anchors, call.columns}, type), 0.0);
  Tensor d_among = torch::stable::fill_(empty({call.among_rows, call.columns}, type), 0.0);
  call.sums = sums.mutable_data_ptr();
  call.d_sums = d_sums.const_data_ptr();
  call.d_s = d_s.mutable_data_ptr();
  call.d_among = d_among.mutable_data_ptr();
  run_mixtures(call, type);
  return {d_s, d_among};
}

}  // namespace

#define PAIRLOOM_MIXTURE_ARGUMENTS                                                                         \
  "Tensor s, Tensor among, int among_first, Tensor begin, Tensor end, Tensor own, Tensor lam, str pairs, " \
  "str positive_term, float positive_scale, float positive_offset, str negative_term, float negative_scale, float negative_offset"

STABLE_TORCH_LIBRARY_FRAGMENT(pairloom, library) {
  library.def("mixture_sums(" PAIRLOOM_MIXTURE_ARGUMENTS ") -> Tensor");
  library.def("mixture_gradients(" PAIRLOOM_MIXTURE_ARGUMENTS ", Tensor d_sums) -> (Tensor d_s, Tensor d_among)");
}

STABLE_TORCH_LIBRARY_IMPL(pairloom, CPU, library) {
  library.impl("mixture_sums", TORCH_BOX(&mixture_sums));
  library.impl("mixture_gradients", TORCH_BOX(&mixture_gradients));
}

}  // namespace pairloom
