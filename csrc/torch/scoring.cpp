// pairloom::pairwise_similarity and pairloom::topk for CPU tensors.
#include "torch/tensors.h"

namespace pairloom {
namespace {

Tensor pairwise_similarity(const Tensor& a, const Tensor& b, const std::string& similarity) {
  PairwiseCall call{.rows = as_matrix(a, "a"), .columns = as_matrix(b, "b"), .similarity = parse_similarity(similarity), .out = nullptr};
  check_same_dim(a, "a", b, "b");
  const ScalarType type = compute_type(a, b);
  Tensor out = empty({call.rows.rows, call.columns.rows}, type);
  call.out = out.mutable_data_ptr();
  run(kernels().pairwise_similarity, type, call);
  return out;
}

std::tuple<Tensor, Tensor> topk(const Tensor& queries, const Tensor& gallery, int64_t k, const std::string& similarity) {
  TopkCall call{.queries = as_matrix(queries, "queries"),
                .gallery = as_matrix(gallery, "gallery"),
                .similarity = parse_similarity(similarity),
                .k = k,
                .scores = nullptr,
                .indices = nullptr};
  check_same_dim(queries, "queries", gallery, "gallery");
  check(k >= 0, "k is ", k, "; expected 0 or more");
  const ScalarType type = compute_type(queries, gallery);
  Tensor scores = empty({call.queries.rows, k}, type);
  Tensor indices = empty({call.queries.rows, k}, ScalarType::Long);
  call.scores = scores.mutable_data_ptr();
  call.indices = static_cast<int64_t*>(indices.mutable_data_ptr());
  run(kernels().topk, type, call);
  return {scores, indices};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(pairloom, library) {
  library.def("pairwise_similarity(Tensor a, Tensor b, str similarity) -> Tensor");
  library.def("topk(Tensor queries, Tensor gallery, int k, str similarity) -> (Tensor scores, Tensor indices)");
}

STABLE_TORCH_LIBRARY_IMPL(pairloom, CPU, library) {
  library.impl("pairwise_similarity", TORCH_BOX(&pairwise_similarity));
  library.impl("topk", TORCH_BOX(&topk));
}

}  // namespace pairloom
