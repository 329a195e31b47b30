#include "core/labels.h"

#include <algorithm>
#include <vector>

namespace pairloom {

bool ignored_label(const PairLossCall& call, const int64_t* labels, int64_t i) {
  if (!call.has_ignore_index || labels == nullptr) return false;
  return call.label_words > 0 ? labels[i * call.label_words] == -1 : labels[i] == call.ignore_index;
}

void classify_labels(const PairLossCall& call, int64_t rows, int64_t columns, int32_t* row_class, int32_t* column_class) {
  const bool ids = call.row_labels != nullptr && call.label_words == 0;
  std::vector<int64_t> known;
  if (ids) {
    known.assign(call.row_labels, call.row_labels + rows);
    std::sort(known.begin(), known.end());
    known.erase(std::unique(known.begin(), known.end()), known.end());
  }
  const auto number = [&](int64_t label) {
    const auto at = std::lower_bound(known.begin(), known.end(), label);
    return at != known.end() && *at == label ? static_cast<int32_t>(at - known.begin()) : int32_t{kPlainNegative};
  };
  for (int64_t i = 0; i < rows; ++i) {
    row_class[i] = ignored_label(call, call.row_labels, i) ? kIgnoredRow : ids ? number(call.row_labels[i]) : kUnlabelledRow;
  }
  const int64_t* labels = call.self ? call.row_labels : call.column_labels;
  const int64_t labelled_columns = labels == nullptr ? 0 : call.self ? rows : call.column_label_count;
  for (int64_t j = 0; j < columns; ++j) {
    column_class[j] = j < labelled_columns && ignored_label(call, labels, j) ? kNoPair
                      : j < labelled_columns && ids                          ? number(labels[j])
                                                                             : kPlainNegative;
  }
}

int64_t largest_class(const PairLossCall& call) {
  std::vector<int64_t> labels(call.row_labels, call.row_labels + call.rows.rows);
  std::sort(labels.begin(), labels.end());
  int64_t largest = 0;
  for (auto at = labels.begin(); at != labels.end();) {
    const auto next = std::upper_bound(at, labels.end(), *at);
    largest = std::max<int64_t>(largest, next - at);
    at = next;
  }
  return largest;
}

}  // namespace pairloom
