// pairloom::pairwise_similarity and pairloom::topk for CPU tensors.
#include <algorithm>

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

// What each query excludes, in rising order. Holds the tensors that the call points into.
class Exclusions {
 public:
  Exclusions(const std::optional<Tensor>& indptr, const std::optional<Tensor>& indices, int64_t queries) {
    check(indptr.has_value() == indices.has_value(), "exclude_indptr and exclude_indices belong together: pass both, or neither");
    if (!indptr.has_value()) return;
    indptr_ = read(*indptr, "exclude_indptr");
    indices_ = read(*indices, "exclude_indices");
    check(indptr_->numel() == queries + 1, "exclude_indptr has ", indptr_->numel(), " entries for ", queries,
          " queries; expected one more than there are queries");
    const int64_t* starts = this->indptr();
    check(starts[0] == 0, "exclude_indptr begins with ", starts[0], "; expected 0");
    for (int64_t q = 0; q < queries; ++q) {
      check(starts[q] <= starts[q + 1], "exclude_indptr falls from ", starts[q], " to ", starts[q + 1], " at query ", q,
            "; it must not fall");
    }
    check(starts[queries] == indices_->numel(), "exclude_indptr ends with ", starts[queries], " for ", indices_->numel(),
          " exclude_indices; expected their number");
    sort(queries);
  }

  const int64_t* indptr() const { return data(indptr_); }
  const int64_t* indices() const { return data(indices_); }

 private:
  static Tensor read(const Tensor& tensor, const char* name) {
    check(tensor.is_cpu(), name, " is on another device; this kernel runs on the CPU");
    check(tensor.dim() == 1, name, " has ", tensor.dim(), " dimensions; expected 1");
    check(tensor.scalar_type() == ScalarType::Long, name, " has dtype ", torch::headeronly::toString(tensor.scalar_type()),
          "; the operator takes int64");
    return torch::stable::contiguous(tensor);
  }

  static const int64_t* data(const std::optional<Tensor>& tensor) {
    return tensor.has_value() ? static_cast<const int64_t*>(tensor->const_data_ptr()) : nullptr;
  }

  // In a copy, and only if something is out of order.
  void sort(int64_t queries) {
    const int64_t* starts = indptr();
    const int64_t* given = indices();
    const auto sorted = [&](int64_t q) { return std::is_sorted(given + starts[q], given + starts[q + 1]); };
    int64_t q = 0;
    while (q < queries && sorted(q)) ++q;
    if (q == queries) return;
    Tensor copy = empty({indices_->numel()}, ScalarType::Long);
    int64_t* ids = static_cast<int64_t*>(copy.mutable_data_ptr());
    std::copy(given, given + starts[queries], ids);
    for (; q < queries; ++q) std::sort(ids + starts[q], ids + starts[q + 1]);
    indices_ = copy;
  }

  std::optional<Tensor> indptr_;
  std::optional<Tensor> indices_;
};

std::tuple<Tensor, Tensor> topk(const Tensor& queries, const Tensor& gallery, int64_t k, const std::string& similarity,
                                std::optional<Tensor> exclude_indptr, std::optional<Tensor> exclude_indices) {
  TopkCall call{.queries = as_matrix(queries, "queries"),
                .gallery = as_matrix(gallery, "gallery"),
                .similarity = parse_similarity(similarity),
                .k = k,
                .scores = nullptr,
                .indices = nullptr};
  check_same_dim(queries, "queries", gallery, "gallery");
  check(k >= 0, "k is ", k, "; expected 0 or more");
  const Exclusions exclusions(exclude_indptr, exclude_indices, call.queries.rows);
  call.exclude_indptr = exclusions.indptr();
  call.exclude_indices = exclusions.indices();
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
  library.def(
      "topk(Tensor queries, Tensor gallery, int k, str similarity, Tensor? exclude_indptr=None, Tensor? exclude_indices=None) "
      "-> (Tensor scores, Tensor indices)");
}

STABLE_TORCH_LIBRARY_IMPL(pairloom, CPU, library) {
  library.impl("pairwise_similarity", TORCH_BOX(&pairwise_similarity));
  library.impl("topk", TORCH_BOX(&topk));
}

}  // namespace pairloom
