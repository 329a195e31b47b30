// Operators of the domain "pairloom" for ONNX Runtime, by the kernels of libpairloom.so, which are linked into this library:
//
//   TopKSimilarity <k, similarity> (queries (Q, D), gallery (M, D), codes (M, S)?, records (5, M)?)  -> (scores (Q, k), indices (Q, k))
//   TopKInt8       <k, similarity> (queries (Q, D), codes (M, S) int8, records (5, M))               -> (scores (Q, k), indices (Q, k))
//
// Queries and scores are float (of TopKSimilarity also double), galleries float, float16 or double. Codes and records are those of
// engine/code_rows.h; given to TopKSimilarity they screen the gallery, and the answer stays that without them. pyext/pairloom/export writes
// files in which the operators have bodies of standard operators; a runtime that registered this library runs these kernels instead.
#include <sched.h>

#include <algorithm>
#include <climits>
#include <cstddef>

#include "cpu/kernels.h"
#include "ort/tensors.h"

namespace pairloom {
namespace {

// The runtime does not say how many threads it has. Work is split into so many parts; fewer threads do several of them.
int parts_of_work() {
  cpu_set_t cpus;
  return sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? std::max(CPU_COUNT(&cpus), 1) : 1;
}

// What a node says: created once for a session, used by all of its runs, at the same time too.
class TopkNode {
 public:
  TopkNode(const OrtApi* api, const OrtKernelInfo* info) : api_(api), threads_(parts_of_work()) {
    succeed(api->KernelInfoGetAttribute_int64(info, "k", &k_));
    if (k_ < 0) throw InputError("k is " + std::to_string(k_) + "; it must be 0 or more");
    char name[32];
    size_t size = sizeof name;
    succeed(api->KernelInfoGetAttribute_string(info, "similarity", name, &size));
    similarity_ = parse_similarity(name);
  }

  // A gallery that the file holds: its norms are found once. (It is sought among the inputs of TopKSimilarity only.)
  void read_constant_gallery(const OrtKernelInfo* info) {
    int constant = 0;
    const OrtValue* value = nullptr;
    succeed(api_->KernelInfoGetConstantInput_tensor(info, 1, &constant, &value));
    if (constant == 0 || value == nullptr || similarity_ != Similarity::cosine) return;
    const InverseNormsCall call{.rows = read_matrix(api_, value, "gallery"), .out = nullptr};
    const bool wide = call.rows.dtype == DType::f64;
    inverse_norms_.resize(static_cast<size_t>(call.rows.rows) * (wide ? sizeof(double) : sizeof(float)));
    const Parallel here{[](int64_t count, Parallel::Task task, void* data) { task(data, 0, count); }, 1};
    (wide ? kernels().inverse_norms.f64 : kernels().inverse_norms.f32)({call.rows, inverse_norms_.data()}, here);
  }

  void search(OrtKernelContext* runtime) const {
    const Context context(api_, runtime);
    TopkCall call = common(context, context.matrix(1, "gallery"));
    if (call.gallery.dim != call.queries.dim) {
      throw InputError("gallery has rows of length " + std::to_string(call.gallery.dim) + ", but queries have rows of length " +
                       std::to_string(call.queries.dim));
    }
    if (!inverse_norms_.empty()) call.gallery.inverse_norms = inverse_norms_.data();
    const bool wide = call.queries.dtype == DType::f64;
    answer_into(context, call, wide);
    context.with_threads(threads_, [&](const Parallel& pool) {
      if (!context.has(2)) return (wide ? kernels().topk.f64 : kernels().topk.f32)(call, pool);
      std::vector<int64_t> rescored(static_cast<size_t>(call.queries.rows));
      const ScreenedTopkCall screened{.topk = call, .codes = codes(context, 2, call), .rescored = rescored.data()};
      (wide ? kernels().screened_topk.f64 : kernels().screened_topk.f32)(screened, pool);
    });
  }

  void search_codes(OrtKernelContext* runtime) const {
    const Context context(api_, runtime);
    if (is_distance(similarity_)) throw InputError("similarity is a distance; int8 galleries have cosine and dot");
    TopkCall call = common(context, {nullptr, context.input(1, "codes", 2).shape[0], 0, 0, 1, DType::f32});
    call.gallery.dim = call.queries.dim;
    answer_into(context, call, false);
    const CodedTopkCall coded{.topk = call, .codes = codes(context, 1, call)};
    context.with_threads(threads_, [&](const Parallel& pool) { kernels().coded_topk(coded, pool); });
  }

 private:
  TopkCall common(const Context& context, const Matrix& gallery) const {
    return {.queries = context.matrix(0, "queries"),
            .gallery = gallery,
            .similarity = similarity_,
            .k = k_,
            .scores = nullptr,
            .indices = nullptr};
  }

  void answer_into(const Context& context, TopkCall& call, bool wide) const {
    const std::vector<int64_t> shape{call.queries.rows, k_};
    call.scores = wide ? static_cast<void*>(context.output<double>(0, shape)) : context.output<float>(0, shape);
    call.indices = context.output<int64_t>(1, shape);
  }

  static CodedRows codes(const Context& context, size_t index, const TopkCall& call) {
    const Input codes = context.input(index, "codes", 2), records = context.input(index + 1, "records", 2);
    const int64_t rows = call.gallery.rows, stride = code_stride(call.queries.dim, true);
    if (call.queries.dim > kMostCodes) {
      throw InputError("queries have " + std::to_string(call.queries.dim) + " numbers per row; codes take at most " +
                       std::to_string(kMostCodes));
    }
    if (codes.shape != std::vector<int64_t>{rows, stride}) {
      throw InputError("codes have shape " + text_of(codes.shape) + "; for this gallery and these queries it must be " +
                       text_of({rows, stride}));
    }
    if (records.shape != std::vector<int64_t>{kCodeRecords, rows}) {
      throw InputError("records have shape " + text_of(records.shape) + "; it must be " + text_of({kCodeRecords, rows}));
    }
    return {.codes = codes.data, .records = static_cast<const float*>(records.data), .stride = stride, .int8 = true};
  }

  const OrtApi* api_;
  int threads_;
  int64_t k_ = 0;
  Similarity similarity_{};
  std::vector<std::byte> inverse_norms_;  // of the rows of the gallery, in its compute type; empty: not known
};

// An operator with fixed types of inputs and outputs. The runtime joins those of one name to one operator with several kernels.
struct Operator : OrtCustomOp {
  const char* name;
  std::vector<ONNXTensorElementDataType> inputs, outputs;
  size_t required;  // of the inputs

  template <void (TopkNode::*Search)(OrtKernelContext*) const>
  static Operator make(const char* name, std::vector<ONNXTensorElementDataType> inputs, size_t required) {
    Operator op{};
    op.name = name;
    op.outputs = {inputs[0], ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64};
    op.inputs = std::move(inputs);
    op.required = required;
    op.version = kOrtApiVersion;
    op.GetName = [](const OrtCustomOp* self) { return of(self).name; };
    op.GetExecutionProviderType = [](const OrtCustomOp*) { return "CPUExecutionProvider"; };
    op.GetInputType = [](const OrtCustomOp* self, size_t index) { return of(self).inputs[index]; };
    op.GetInputTypeCount = [](const OrtCustomOp* self) { return of(self).inputs.size(); };
    op.GetOutputType = [](const OrtCustomOp* self, size_t index) { return of(self).outputs[index]; };
    op.GetOutputTypeCount = [](const OrtCustomOp* self) { return of(self).outputs.size(); };
    op.GetInputCharacteristic = [](const OrtCustomOp* self, size_t index) {
      return index < of(self).required ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL;
    };
    op.GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_REQUIRED; };
    op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return 0; };
    op.GetStartVersion = [](const OrtCustomOp*) { return 1; };
    op.GetEndVersion = [](const OrtCustomOp*) { return INT_MAX; };
    op.CreateKernelV2 = [](const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
      return guarded(api, [&] {
        TopkNode node(api, info);
        if (Search == &TopkNode::search) node.read_constant_gallery(info);
        *kernel = new Kernel{api, std::move(node)};
      });
    };
    op.KernelComputeV2 = [](void* kernel, OrtKernelContext* context) {
      const Kernel& own = *static_cast<const Kernel*>(kernel);
      return guarded(own.api, [&] { (own.node.*Search)(context); });
    };
    op.KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
    return op;
  }

 private:
  struct Kernel {
    const OrtApi* api;
    TopkNode node;
  };
  static const Operator& of(const OrtCustomOp* op) { return *static_cast<const Operator*>(op); }
};

constexpr auto kFloat = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
constexpr auto kHalf = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
constexpr auto kDouble = ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE;
constexpr auto kInt8 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8;

const std::vector<Operator>& operators() {
  static const std::vector<Operator> all = [] {
    constexpr const char* kName = "TopKSimilarity";
    std::vector<Operator> made;
    made.push_back(Operator::make<&TopkNode::search>(kName, {kFloat, kFloat, kInt8, kFloat}, 2));
    made.push_back(Operator::make<&TopkNode::search>(kName, {kFloat, kHalf, kInt8, kFloat}, 2));
    made.push_back(Operator::make<&TopkNode::search>(kName, {kDouble, kDouble, kInt8, kFloat}, 2));
    made.push_back(Operator::make<&TopkNode::search_codes>("TopKInt8", {kFloat, kInt8, kFloat}, 3));
    return made;
  }();
  return all;
}

// One for the process, and never released: sessions point into it.
OrtCustomOpDomain* domain(const OrtApi* api) {
  static OrtCustomOpDomain* const made = [api] {
    OrtCustomOpDomain* fresh = nullptr;
    succeed(api->CreateCustomOpDomain("pairloom", &fresh));
    for (const Operator& op : operators()) succeed(api->CustomOpDomain_Add(fresh, &op));
    return fresh;
  }();
  return made;
}

}  // namespace
}  // namespace pairloom

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  using namespace pairloom;
  const OrtApi* const api = base->GetApi(kOrtApiVersion);
  if (api == nullptr) {  // an older runtime: every version can make a status
    const std::string message = std::string("pairloom's operators need ONNX Runtime 1.17 or newer; this is ") + base->GetVersionString();
    return base->GetApi(1)->CreateStatus(ORT_FAIL, message.c_str());
  }
  return guarded(api, [&] { succeed(api->AddCustomOpDomain(options, domain(api))); });
}
