// pairloom::pairwise_similarity and pairloom::topk for CPU tensors.
#include "core/arguments.h"
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

// The tensors of what each query excludes, which the lists point into.
class ExcludeTensors {
 public:
  ExcludeTensors(const std::optional<Tensor>& indptr, const std::optional<Tensor>& indices, int64_t queries) {
    check(indptr.has_value() == indices.has_value(), "exclude_indptr and exclude_indices belong together: pass both, or neither");
    if (!indptr.has_value()) return;
    indptr_ = read(*indptr, "exclude_indptr");
    indices_ = read(*indices, "exclude_indices");
    lists_ = Exclusions(data(*indptr_), indptr_->numel(), data(*indices_), indices_->numel(), queries);
  }

  const Exclusions& lists() const { return lists_; }

 private:
  static Tensor read(const Tensor& tensor, const char* name) {
    check(tensor.is_cpu(), name, " is on another device; this kernel runs on the CPU");
    check(tensor.dim() == 1, name, " has ", tensor.dim(), " dimensions; expected 1");
    check(tensor.scalar_type() == ScalarType::Long, name, " has dtype ", torch::headeronly::toString(tensor.scalar_type()),
          "; the operator takes int64");
    return torch::stable::contiguous(tensor);
  }

  static const int64_t* data(const Tensor& tensor) { return static_cast<const int64_t*>(tensor.const_data_ptr()); }

  std::optional<Tensor> indptr_;
  std::optional<Tensor> indices_;
  Exclusions lists_;
};

// What top-k calls share; owns what the call points into.
class TopkArguments {
 public:
  TopkArguments(const Tensor& queries, const Tensor& gallery, int64_t k, const std::string& similarity,
                const std::optional<Tensor>& exclude_indptr, const std::optional<Tensor>& exclude_indices)
      : type(compute_type(queries, gallery)),
        call{.queries = as_matrix(queries, "queries"),
             .gallery = as_matrix(gallery, "gallery"),
             .similarity = parse_similarity(similarity),
             .k = k,
             .scores = nullptr,
             .indices = nullptr},
        exclusions_(exclude_indptr, exclude_indices, call.queries.rows) {
    check_same_dim(queries, "queries", gallery, "gallery");
    check(k >= 0, "k is ", k, "; expected 0 or more");
    call.exclude_indptr = exclusions_.lists().indptr();
    call.exclude_indices = exclusions_.lists().indices();
    scores = empty({call.queries.rows, k}, type);
    indices = empty({call.queries.rows, k}, ScalarType::Long);
    call.scores = scores.mutable_data_ptr();
    call.indices = static_cast<int64_t*>(indices.mutable_data_ptr());
  }

  ScalarType type;
  TopkCall call;
  Tensor scores, indices;

 private:
  ExcludeTensors exclusions_;
};

std::tuple<Tensor, Tensor> topk(const Tensor& queries, const Tensor& gallery, int64_t k, const std::string& similarity,
                                std::optional<Tensor> exclude_indptr, std::optional<Tensor> exclude_indices) {
  const TopkArguments arguments(queries, gallery, k, similarity, exclude_indptr, exclude_indices);
  run(kernels().topk, arguments.type, arguments.call);
  return {arguments.scores, arguments.indices};
}

std::tuple<Tensor, Tensor> code_rows(const Tensor& rows, const std::string& format) {
  check(format == "int8" || format == "bf16", "format is '", format, "'; allowed are 'int8' and 'bf16'");
  CodeRowsCall call{.rows = as_matrix(rows, "rows"), .codes = nullptr, .records = nullptr, .stride = 0, .int8 = format == "int8"};
  check(call.rows.dim <= kMostCodes, "rows have ", call.rows.dim, " numbers; codes take at most ", kMostCodes);
  call.stride = code_stride(call.rows.dim, call.int8);
  Tensor codes = empty({call.rows.rows, call.stride}, call.int8 ? ScalarType::Char : ScalarType::BFloat16);
  Tensor records = empty({int64_t{kCodeRecords}, call.rows.rows}, ScalarType::Float);
  call.codes = codes.mutable_data_ptr();
  call.records = static_cast<float*>(records.mutable_data_ptr());
  run(kernels().code_rows, compute_type(rows, rows), call);
  return {codes, records};
}

CodedRows as_coded(const Tensor& codes, const Tensor& records, int64_t rows, int64_t dim) {
  const bool int8 = codes.scalar_type() == ScalarType::Char;
  const int64_t stride = code_stride(dim, int8);
  check(dim <= kMostCodes, "rows have ", dim, " numbers; codes take at most ", kMostCodes);
  check((int8 || codes.scalar_type() == ScalarType::BFloat16) && codes.dim() == 2 && codes.size(0) == rows && codes.size(1) == stride &&
            codes.is_contiguous() && codes.is_cpu(),
        "codes must be contiguous int8 or bfloat16 (", rows, ", ", stride, "), as code_rows makes them");
  check(records.scalar_type() == ScalarType::Float && records.dim() == 2 && records.size(0) == kCodeRecords && records.size(1) == rows &&
            records.is_contiguous() && records.is_cpu(),
        "records must be contiguous float32 (", int64_t{kCodeRecords}, ", ", rows, "), as code_rows makes them");
  return {.codes = codes.const_data_ptr(), .records = static_cast<const float*>(records.const_data_ptr()), .stride = stride, .int8 = int8};
}

std::tuple<Tensor, Tensor, Tensor> screened_topk(const Tensor& queries, const Tensor& gallery, const Tensor& codes, const Tensor& records,
                                                 int64_t k, const std::string& similarity, std::optional<Tensor> exclude_indptr,
                                                 std::optional<Tensor> exclude_indices) {
  const TopkArguments arguments(queries, gallery, k, similarity, exclude_indptr, exclude_indices);
  Tensor rescored = empty({arguments.call.queries.rows}, ScalarType::Long);
  const ScreenedTopkCall call{.topk = arguments.call,
                              .codes = as_coded(codes, records, arguments.call.gallery.rows, arguments.call.gallery.dim),
                              .rescored = static_cast<int64_t*>(rescored.mutable_data_ptr())};
  run(kernels().screened_topk, arguments.type, call);
  return {arguments.scores, arguments.indices, rescored};
}

std::tuple<Tensor, Tensor> coded_topk(const Tensor& queries, const Tensor& codes, const Tensor& records, int64_t k,
                                      const std::string& similarity, std::optional<Tensor> exclude_indptr,
                                      std::optional<Tensor> exclude_indices) {
  // What the gallery was, for the sizes: it is not read.
  const Tensor wide = queries.scalar_type() == ScalarType::Double ? torch::stable::to(queries, ScalarType::Float) : queries;
  TopkArguments arguments(wide, wide, k, similarity, exclude_indptr, exclude_indices);
  arguments.call.gallery.rows = codes.size(0);
  check(!is_distance(arguments.call.similarity), "similarity is '", similarity, "'; int8 galleries have 'cosine' and 'dot'");
  const CodedTopkCall call{.topk = arguments.call, .codes = as_coded(codes, records, codes.size(0), arguments.call.queries.dim)};
  check(call.codes.int8, "codes are bfloat16; expected int8");
  kernels().coded_topk(call, torch_threads());
  return {arguments.scores, arguments.indices};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(pairloom, library) {
  library.def("pairwise_similarity(Tensor a, Tensor b, str similarity) -> Tensor");
  library.def(
      "topk(Tensor queries, Tensor gallery, int k, str similarity, Tensor? exclude_indptr=None, Tensor? exclude_indices=None) "
      "-> (Tensor scores, Tensor indices)");
  library.def("code_rows(Tensor rows, str format) -> (Tensor codes, Tensor records)");
  library.def(
      "screened_topk(Tensor queries, Tensor gallery, Tensor codes, Tensor records, int k, str similarity, Tensor? exclude_indptr=None, "
      "Tensor? exclude_indices=None) -> (Tensor scores, Tensor indices, Tensor rescored)");
  library.def(
      "coded_topk(Tensor queries, Tensor codes, Tensor records, int k, str similarity, Tensor? exclude_indptr=None, "
      "Tensor? exclude_indices=None) -> (Tensor scores, Tensor indices)");
}

STABLE_TORCH_LIBRARY_IMPL(pairloom, CPU, library) {
  library.impl("pairwise_similarity", TORCH_BOX(&pairwise_similarity));
  library.impl("topk", TORCH_BOX(&topk));
  library.impl("code_rows", TORCH_BOX(&code_rows));
  library.impl("screened_topk", TORCH_BOX(&screened_topk));
  library.impl("coded_topk", TORCH_BOX(&coded_topk));
}

}  // namespace pairloom
