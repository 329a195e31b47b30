// The pair losses for CPU tensors: one schema each, one way of reading the arguments that they share.
#include <limits>

#include "torch/tensors.h"

namespace pairloom {
namespace {

// Bits of the needs_grad argument.
enum NeedsGrad : int64_t { kRowsGrad = 1, kColumnsGrad = 2, kTemperatureGrad = 4, kWeightsGrad = 32 };

// The arguments all pair losses share; owns what the call struct points to.
class PairLossArguments {
 public:
  PairLossArguments(const Tensor& rows, const std::optional<Tensor>& columns, const std::optional<Tensor>& temperature,
                    const std::optional<Tensor>& row_labels, const std::optional<Tensor>& column_labels,
                    const std::optional<Tensor>& weights, const std::string& similarity, const std::string& reduction,
                    std::optional<int64_t> ignore_index, int64_t needs_grad, bool want_stats)
      : type_(compute_type(rows, columns.value_or(rows))),
        row_labels_(read_labels(row_labels, "row_labels")),
        column_labels_(read_labels(column_labels, "column_labels")) {
    call.rows = as_matrix(rows, "rows");
    call.self = !columns.has_value();
    call.columns = call.self ? call.rows : as_matrix(*columns, "columns");
    check_same_dim(rows, "rows", columns.value_or(rows), "columns");
    call.similarity = parse_similarity(similarity);
    call.reduction = parse_reduction(reduction);
    const int64_t n = call.rows.rows;
    const int64_t m = call.columns.rows;
    check(m <= std::numeric_limits<int32_t>::max(), "columns has ", m, " rows; at most 2^31 - 1 are possible");
    if (temperature.has_value()) {
      temperature_ = read_doubles(*temperature, "temperature");
      call.temperature_per_row = temperature->dim() == 1;
      check(!call.temperature_per_row || temperature->size(0) == n, "temperature has ", temperature_.size(), " values for ", n, " rows");
      for (double t : temperature_)
        check(t > 0 && t <= std::numeric_limits<double>::max(), "temperature is ", t, "; expected finite values above 0");
      call.temperature = temperature_.data();
    }
    if (weights.has_value()) {
      check(weights->dim() == 1 && weights->size(0) == n, "weights must have one value for each of the ", n, " rows");
      weights_ = read_doubles(*weights, "weights");
      call.weights = weights_.data();
    }
    if (row_labels_.has_value()) {
      check(row_labels_->size(0) == n, "row_labels has ", row_labels_->size(0), " values for ", n, " rows");
      call.row_labels = row_labels_->const_data_ptr<int64_t>();
      call.label_words = words_of(*row_labels_);
    }
    if (column_labels_.has_value()) {
      check(column_labels_->size(0) <= m, "column_labels has ", column_labels_->size(0), " values for ", m, " columns");
      check(row_labels_.has_value(), "column_labels is given without row_labels");
      check(words_of(*column_labels_) == call.label_words, "column_labels have ", words_of(*column_labels_),
            " words of labels and row_labels ", call.label_words);
      call.column_labels = column_labels_->const_data_ptr<int64_t>();
      call.column_label_count = column_labels_->size(0);
    }
    call.has_ignore_index = ignore_index.has_value();
    call.ignore_index = ignore_index.value_or(0);

    // Per-row losses leave no room for gradients of their sum: the upstream vector is not known yet.
    if (call.reduction == Reduction::none) needs_grad = 0;
    row_loss_ = empty({n}, type_);
    stats_ = torch::stable::new_zeros(rows, {int64_t{kStatCount}}, ScalarType::Double);
    d_rows_ = empty({needs_grad & kRowsGrad ? n : 0, call.rows.dim}, type_);
    d_columns_ = empty({(needs_grad & kColumnsGrad) && !call.self ? m : 0, call.rows.dim}, type_);
    d_weights_ = empty({(needs_grad & kWeightsGrad) && call.weights != nullptr ? n : 0}, type_);
    d_temperature_.assign(needs_grad & kTemperatureGrad ? temperature_.size() : 0, 0.0);
    call.row_loss = row_loss_.mutable_data_ptr();
    if (needs_grad & kRowsGrad) call.d_rows = d_rows_.mutable_data_ptr();
    if ((needs_grad & kColumnsGrad) && !call.self) call.d_columns = d_columns_.mutable_data_ptr();
    if (needs_grad & kTemperatureGrad) call.d_temperature = d_temperature_.data();
    if ((needs_grad & kWeightsGrad) && call.weights != nullptr) call.d_weights = d_weights_.mutable_data_ptr();
    if (want_stats) call.stats = static_cast<double*>(stats_.mutable_data_ptr());
    call.loss = &loss_;
  }

  ScalarType type() const { return type_; }

  Tensor loss() const {
    if (call.reduction == Reduction::none) return row_loss_;
    return scalar(loss_);
  }
  Tensor stats() const { return stats_; }
  Tensor d_rows() const { return d_rows_; }
  Tensor d_columns() const { return d_columns_; }
  Tensor d_weights() const { return d_weights_; }
  Tensor d_temperature() const {
    if (call.d_temperature == nullptr) return empty({0}, type_);
    if (!call.temperature_per_row) return scalar(d_temperature_[0]);
    Tensor out = empty({static_cast<int64_t>(d_temperature_.size())}, type_);
    for (size_t i = 0; i < d_temperature_.size(); ++i) write(out, i, d_temperature_[i]);
    return out;
  }

  // For losses that are sums of terms.
  void count_terms() {
    row_active_.resize(static_cast<size_t>(call.rows.rows));
    row_terms_.resize(row_active_.size());
    call.row_active = row_active_.data();
    call.row_terms = row_terms_.data();
  }

  PairLossCall call{};

 private:
  static int64_t words_of(const Tensor& labels) { return labels.dim() == 2 ? labels.size(1) : 0; }
  Tensor scalar(double value) const {
    Tensor out = empty({}, type_);
    write(out, 0, value);
    return out;
  }
  void write(Tensor& out, size_t i, double value) const {
    if (type_ == ScalarType::Double) {
      static_cast<double*>(out.mutable_data_ptr())[i] = value;
    } else {
      static_cast<float*>(out.mutable_data_ptr())[i] = static_cast<float>(value);
    }
  }

  ScalarType type_;
  std::optional<Tensor> row_labels_, column_labels_;
  std::vector<double> temperature_, weights_, d_temperature_;
  std::vector<int64_t> row_active_, row_terms_;
  Tensor row_loss_, stats_, d_rows_, d_columns_, d_weights_;
  double loss_ = 0;
};

// Columns of their own have a label each.
void check_labelled(const std::optional<Tensor>& columns, const std::optional<Tensor>& column_labels) {
  check(columns.has_value() == column_labels.has_value(), "columns and column_labels must be given together");
  check(!columns.has_value() || column_labels->size(0) == columns->size(0), "column_labels has ",
        columns.has_value() ? column_labels->size(0) : 0, " values for ", columns.has_value() ? columns->size(0) : 0, " columns");
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> info_nce(const Tensor& rows, std::optional<Tensor> columns, const Tensor& temperature,
                                                            std::optional<Tensor> row_labels, std::optional<Tensor> column_labels,
                                                            std::optional<Tensor> weights, std::string similarity, std::string reduction,
                                                            std::string same_id, std::optional<int64_t> ignore_index, int64_t needs_grad,
                                                            bool want_stats) {
  PairLossArguments arguments(rows, columns, temperature, row_labels, column_labels, weights, similarity, reduction, ignore_index,
                              needs_grad, want_stats);
  check(same_id == "ignore" || same_id == "positive" || same_id == "only", "same_id is '", same_id,
        "'; allowed are 'ignore', 'positive' and 'only'");
  if (same_id == "only") {
    check(row_labels.has_value(), "row_labels is missing, and same_id 'only' takes positives from nothing else");
    check_labelled(columns, column_labels);
  } else {
    check(columns.has_value() && columns->size(0) >= rows.size(0), "columns has ", columns.has_value() ? columns->size(0) : 0,
          " rows; expected at least the ", rows.size(0), " of rows, whose positives they hold");
  }
  arguments.call.target_is_row = same_id != "only";
  arguments.call.same_label_is_positive = same_id != "ignore";
  const InfoNceCall call{arguments.call};
  run(kernels().info_nce, arguments.type(), call);
  return {arguments.loss(), arguments.stats(), arguments.d_rows(), arguments.d_columns(), arguments.d_temperature()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> clip(const Tensor& rows, const Tensor& columns, const Tensor& temperature,
                                                        std::optional<Tensor> row_labels, std::optional<Tensor> weights,
                                                        std::string similarity, std::string reduction, std::string same_id,
                                                        std::optional<int64_t> ignore_index, int64_t needs_grad, bool want_stats) {
  check(columns.size(0) == rows.size(0), "columns has ", columns.size(0), " rows; expected the ", rows.size(0), " of rows");
  check(same_id == "ignore" || same_id == "positive", "same_id is '", same_id, "'; allowed are 'ignore' and 'positive'");
  PairLossArguments arguments(rows, columns, temperature, row_labels, row_labels, weights, similarity, reduction, ignore_index, needs_grad,
                              want_stats);
  arguments.call.target_is_row = true;
  arguments.call.same_label_is_positive = same_id == "positive";
  const ClipCall call{arguments.call};
  run(kernels().clip, arguments.type(), call);
  return {arguments.loss(), arguments.stats(), arguments.d_rows(), arguments.d_columns(), arguments.d_temperature()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> sup_con(const Tensor& rows, std::optional<Tensor> columns, const Tensor& temperature,
                                                           const Tensor& row_labels, std::optional<Tensor> column_labels,
                                                           std::optional<Tensor> weights, std::string form, std::string similarity,
                                                           std::string reduction, std::optional<int64_t> ignore_index, int64_t needs_grad,
                                                           bool want_stats) {
  check(form == "out" || form == "in", "form is '", form, "'; allowed are 'out' and 'in'");
  PairLossArguments arguments(rows, columns, temperature, row_labels, column_labels, weights, similarity, reduction, ignore_index,
                              needs_grad, want_stats);
  check_labelled(columns, column_labels);
  arguments.call.same_label_is_positive = true;
  const SupConCall call{.pairs = arguments.call, .inside = form == "in"};
  run(kernels().sup_con, arguments.type(), call);
  return {arguments.loss(), arguments.stats(), arguments.d_rows(), arguments.d_columns(), arguments.d_temperature()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> multi_similarity(const Tensor& rows, std::optional<Tensor> columns, const Tensor& row_labels,
                                                            std::optional<Tensor> column_labels, std::optional<Tensor> weights,
                                                            double alpha, double beta, double base, std::optional<double> epsilon,
                                                            std::string similarity, std::string reduction,
                                                            std::optional<int64_t> ignore_index, int64_t needs_grad, bool want_stats) {
  PairLossArguments arguments(rows, columns, std::nullopt, row_labels, column_labels, weights, similarity, reduction, ignore_index,
                              needs_grad, want_stats);
  check_labelled(columns, column_labels);
  arguments.call.same_label_is_positive = true;
  const MultiSimilarityCall call{
      .pairs = arguments.call, .alpha = alpha, .beta = beta, .base = base, .epsilon = epsilon.value_or(0.0), .mining = epsilon.has_value()};
  run(kernels().multi_similarity, arguments.type(), call);
  return {arguments.loss(), arguments.stats(), arguments.d_rows(), arguments.d_columns()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> triplet_margin(
    const Tensor& rows, std::optional<Tensor> columns, const Tensor& row_labels, std::optional<Tensor> column_labels,
    std::optional<Tensor> weights, double margin, bool smooth_loss, std::optional<double> lowest, std::optional<double> highest,
    std::string similarity, std::string reduction, std::optional<int64_t> ignore_index, int64_t needs_grad, bool want_stats) {
  PairLossArguments arguments(rows, columns, std::nullopt, row_labels, column_labels, weights, similarity,
                              reduction == "mean" ? "mean_nonzero" : reduction, ignore_index, needs_grad, want_stats);
  check_labelled(columns, column_labels);
  arguments.call.same_label_is_positive = true;
  arguments.count_terms();
  const TripletMarginCall call{.pairs = arguments.call,
                               .margin = margin,
                               .smooth = smooth_loss,
                               .has_lowest = lowest.has_value(),
                               .has_highest = highest.has_value(),
                               .lowest = lowest.value_or(0.0),
                               .highest = highest.value_or(0.0)};
  run(kernels().triplet_margin, arguments.type(), call);
  return {arguments.loss(), arguments.stats(), arguments.d_rows(), arguments.d_columns(), arguments.d_weights()};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(pairloom, library) {
  library.def(
      "info_nce(Tensor rows, Tensor? columns, Tensor temperature, Tensor? row_labels, Tensor? column_labels, Tensor? weights, "
      "str similarity, str reduction, str same_id, int? ignore_index, int needs_grad, bool want_stats) "
      "-> (Tensor loss, Tensor stats, Tensor d_rows, Tensor d_columns, Tensor d_temperature)");
  library.def(
      "clip(Tensor rows, Tensor columns, Tensor temperature, Tensor? row_labels, Tensor? weights, str similarity, str reduction, "
      "str same_id, int? ignore_index, int needs_grad, bool want_stats) "
      "-> (Tensor loss, Tensor stats, Tensor d_rows, Tensor d_columns, Tensor d_temperature)");
  library.def(
      "sup_con(Tensor rows, Tensor? columns, Tensor temperature, Tensor row_labels, Tensor? column_labels, Tensor? weights, str form, "
      "str similarity, str reduction, int? ignore_index, int needs_grad, bool want_stats) "
      "-> (Tensor loss, Tensor stats, Tensor d_rows, Tensor d_columns, Tensor d_temperature)");
  library.def(
      "multi_similarity(Tensor rows, Tensor? columns, Tensor row_labels, Tensor? column_labels, Tensor? weights, "
      "float alpha, float beta, float base, float? epsilon, str similarity, str reduction, int? ignore_index, int needs_grad, "
      "bool want_stats) -> (Tensor loss, Tensor stats, Tensor d_rows, Tensor d_columns)");
  library.def(
      "triplet_margin(Tensor rows, Tensor? columns, Tensor row_labels, Tensor? column_labels, Tensor? weights, float margin, "
      "bool smooth_loss, float? lowest, float? highest, str similarity, str reduction, int? ignore_index, int needs_grad, "
      "bool want_stats) -> (Tensor loss, Tensor stats, Tensor d_rows, Tensor d_columns, Tensor d_weights)");
  // Rows of a chunk on another device, whose kernel pair_rows.cu has; here there is none.
  library.def(
      "pair_rows(Tensor s, Tensor(a!)? slopes, str rule, float alpha, float beta, float base, float? epsilon, bool inside, int first_row, "
      "Tensor? row_labels, Tensor? column_labels, bool self_pairs, bool target_is_row, bool same_label_is_positive, int? ignore_index, "
      "Tensor? temperature, Tensor? weights, bool want_temperature, bool want_stats) "
      "-> (Tensor losses, Tensor temperature_slopes, Tensor stats)");
}

STABLE_TORCH_LIBRARY_IMPL(pairloom, CPU, library) {
  library.impl("info_nce", TORCH_BOX(&info_nce));
  library.impl("clip", TORCH_BOX(&clip));
  library.impl("sup_con", TORCH_BOX(&sup_con));
  library.impl("multi_similarity", TORCH_BOX(&multi_similarity));
  library.impl("triplet_margin", TORCH_BOX(&triplet_margin));
}

}  // namespace pairloom
