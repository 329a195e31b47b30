// pairloom::pair_rows for tensors of a GPU: see cuda/pair_rows.h. tests/cuda_host compiles this very file for the host.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <string>

#include "cuda/pair_rows.h"
#include "rules/info_nce.h"
#include "rules/multi_similarity.h"
#include "rules/sup_con.h"
#include "torch/device.h"

namespace pairloom::cuda {
namespace {

using PAIRLOOM_ISA::InfoNce;
using PAIRLOOM_ISA::MultiSimilarity;
using PAIRLOOM_ISA::SupCon;

constexpr int64_t kMostBlocks = 1 << 20;

template <class Rule, class T, class Slope>
void launch(const PairRows& call, const Rule& rule, void* stream) {
  const unsigned blocks = static_cast<unsigned>(std::min(call.rows, kMostBlocks));
  PAIRLOOM_LAUNCH((pair_rows<Rule, T, Slope>), blocks, kThreads, stream, call, rule);
}

struct Settings {
  double alpha, beta, base, epsilon;
  bool mining, inside;
};

template <class T, class Slope>
void launch_rule(const PairRows& call, const std::string& rule, const Settings& given, void* stream) {
  const PairLossCall none{};
  if (rule == "info_nce") return launch<InfoNce<T>, T, Slope>(call, InfoNce<T>(InfoNceCall{none}), stream);
  if (rule == "sup_con") return launch<SupCon<T>, T, Slope>(call, SupCon<T>(SupConCall{none, given.inside}), stream);
  const MultiSimilarityCall settings{none, given.alpha, given.beta, given.base, given.epsilon, given.mining};
  launch<MultiSimilarity<T>, T, Slope>(call, MultiSimilarity<T>(settings), stream);
}

const int64_t* labels(const std::optional<Tensor>& tensor, const char* name, const Tensor& s) {
  if (!tensor.has_value()) return nullptr;
  check(same_device(*tensor, s) && tensor->scalar_type() == ScalarType::Long && tensor->is_contiguous() && tensor->dim() >= 1, name,
        " must be contiguous int64 on the device of s");
  return static_cast<const int64_t*>(tensor->const_data_ptr());
}

const void* numbers(const std::optional<Tensor>& tensor, const char* name, const Tensor& s) {
  if (!tensor.has_value()) return nullptr;
  check(same_device(*tensor, s) && tensor->scalar_type() == s.scalar_type() && tensor->is_contiguous(), name,
        " must be contiguous, of the type of s and on its device");
  return tensor->const_data_ptr();
}

std::tuple<Tensor, Tensor, Tensor> pair_rows_op(const Tensor& s, std::optional<Tensor> slopes, const std::string& rule, double alpha,
                                                double beta, double base, std::optional<double> epsilon, bool inside, int64_t first_row,
                                                std::optional<Tensor> row_labels, std::optional<Tensor> column_labels, bool self,
                                                bool target_is_row, bool same_label_is_positive, std::optional<int64_t> ignore_index,
                                                std::optional<Tensor> temperature, std::optional<Tensor> weights, bool want_temperature,
                                                bool want_stats) {
  const ScalarType type = s.scalar_type();
  check(on_device(s), "s is on the CPU; this kernel runs on a GPU");
  check((type == ScalarType::Float || type == ScalarType::Double) && s.dim() == 2 && s.stride(1) == 1,
        "s must be rows of float32 or float64");
  check(rule == "info_nce" || rule == "sup_con" || rule == "multi_similarity", "rule is '", rule,
        "'; allowed are 'info_nce', 'sup_con' and 'multi_similarity'");
  PairRows call{};
  call.s = s.const_data_ptr();
  call.s_stride = s.stride(0);
  call.rows = s.size(0);
  call.columns = s.size(1);
  call.first_row = first_row;
  check(first_row >= 0, "first_row is ", first_row, "; expected 0 or more");
  const int64_t last = first_row + call.rows;
  bool half = false;
  if (slopes.has_value()) {
    half = slopes->scalar_type() == ScalarType::BFloat16 && type == ScalarType::Float;
    check(same_device(*slopes, s) && (half || slopes->scalar_type() == type) && slopes->dim() == 2 && slopes->size(0) == call.rows &&
              slopes->size(1) == call.columns && slopes->stride(1) == 1,
          "slopes must be of the shape and device of s, and of its type or bfloat16");
    call.slopes = slopes->mutable_data_ptr();
    call.slope_stride = slopes->stride(0);
  }
  call.row_labels = labels(row_labels, "row_labels", s);
  call.column_labels = labels(column_labels, "column_labels", s);
  check(!column_labels.has_value() || row_labels.has_value(), "column_labels is given without row_labels");
  if (row_labels.has_value()) {
    check(row_labels->size(0) >= last, "row_labels has ", row_labels->size(0), " values for rows up to ", last);
    call.label_words = row_labels->dim() == 2 ? row_labels->size(1) : 0;
  }
  if (column_labels.has_value()) {
    call.column_label_count = column_labels->size(0);
    check(call.column_label_count <= call.columns && (column_labels->dim() == 2 ? column_labels->size(1) : 0) == call.label_words,
          "column_labels must be labels of columns, like row_labels");
  }
  call.self = self;
  call.target_is_row = target_is_row;
  call.same_label_is_positive = same_label_is_positive;
  call.has_ignore_index = ignore_index.has_value();
  call.ignore_index = ignore_index.value_or(0);
  call.temperature = numbers(temperature, "temperature", s);
  if (temperature.has_value()) {
    call.temperature_stride = temperature->dim();
    check(temperature->dim() <= 1 && (temperature->dim() == 0 || temperature->size(0) >= last),
          "temperature must be one value, or one a row");
  }
  call.weights = numbers(weights, "weights", s);
  check(!weights.has_value() || (weights->dim() == 1 && weights->size(0) >= last), "weights must have one value for each row");

  const Tensor losses = torch::stable::new_empty(s, {call.rows}, type);
  const Tensor temperature_slopes = torch::stable::new_empty(s, {want_temperature ? call.rows : 0}, type);
  const Tensor stats = torch::stable::new_empty(s, {want_stats ? call.rows : 0, int64_t{kStatCount}}, ScalarType::Double);
  call.losses = losses.mutable_data_ptr();
  if (want_temperature) call.temperature_slopes = temperature_slopes.mutable_data_ptr();
  if (want_stats) call.stats = static_cast<double*>(stats.mutable_data_ptr());
  if (want_stats && call.rows > 0) torch::stable::zero_(const_cast<Tensor&>(stats));
  if (call.rows == 0) return {losses, temperature_slopes, stats};

  const DeviceScope scope(s);
  const Settings given{alpha, beta, base, epsilon.value_or(0.0), epsilon.has_value(), inside};
  if (type == ScalarType::Double) {
    launch_rule<double, double>(call, rule, given, scope.stream());
  } else if (half) {
    launch_rule<float, BFloat16>(call, rule, given, scope.stream());
  } else {
    launch_rule<float, float>(call, rule, given, scope.stream());
  }
  check_launch("pair_rows");
  return {losses, temperature_slopes, stats};
}

}  // namespace

// The schema stands with those of the losses, in pair_losses.cpp.
STABLE_TORCH_LIBRARY_IMPL(pairloom, PAIRLOOM_DEVICE_KEY, library) { library.impl("pair_rows", TORCH_BOX(&pair_rows_op)); }

}  // namespace pairloom::cuda
