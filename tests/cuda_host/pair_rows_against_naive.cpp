// The GPU's row kernel, run on the host, equals the definition: losses, slopes (as gradients of rows, columns and temperature) and
// statistics, for every rule, over sizes around the edges of warps and blocks, ids and sets of labels, ignored rows with NaN in them.
#include "../cpp/naive.h"
#include "cuda/pair_rows.h"

namespace pairloom::tests {
namespace {

template <class T, class Slope>
double as_double(Slope x) {
  if constexpr (std::is_same_v<Slope, cuda::BFloat16>) {
    const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  } else {
    return x;
  }
}

// One problem through the kernel, chunk by chunk, as csrc/cuda/pair_rows.cu and pyext/pairloom/_device_loss.py do it.
template <class T, class Slope, class Rule, class NaiveRule>
void compare(const std::string& where, const Problem& p, const Rule& rule, const NaiveRule& naive_rule, double share) {
  const int64_t n = p.rows.count, m = p.m(), dim = p.rows.dim;
  const Answer wanted = naive_answer(p, naive_rule);
  const auto entry = [&](const Rows& x, const std::vector<int64_t>& labels, int64_t i, int64_t k) {
    const bool labelled = i < static_cast<int64_t>(labels.size()) / std::max<int64_t>(p.call.label_words, 1);
    const bool out = p.call.row_labels != nullptr && labelled && has_ignored_label(p.call, labels.data(), i);
    return out ? 0.0 : x.at(i, k);  // what takes no part is zero before the products
  };
  const std::vector<int64_t>& column_labels = p.call.self ? p.row_labels : p.column_labels;
  std::vector<T> temperature(p.temperature.begin(), p.temperature.end()), weights(p.weights.begin(), p.weights.end());
  std::vector<double> losses, d_rows(n * dim), d_columns(m * dim), d_temperature(wanted.d_temperature.size()), stats(kStatCount);
  const int64_t chunk = 3, gap = 2;
  for (int64_t first = 0; first < n; first += chunk) {
    const int64_t count = std::min(chunk, n - first), stride = m + gap;
    std::vector<T> s(count * stride, std::numeric_limits<T>::quiet_NaN());
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t j = 0; j < m; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < dim; ++k) sum += entry(p.rows, p.row_labels, first + r, k) * entry(p.column_rows(), column_labels, j, k);
        s[r * stride + j] = static_cast<T>(sum);
      }
    }
    std::vector<Slope> apart(std::is_same_v<T, Slope> ? 0 : count * stride);
    std::vector<T> row_losses(count), along(count);
    std::vector<double> row_stats(count * kStatCount);
    cuda::PairRows call{};
    call.s = s.data(), call.s_stride = stride;
    call.slopes = std::is_same_v<T, Slope> ? static_cast<void*>(s.data()) : static_cast<void*>(apart.data());
    call.slope_stride = stride;
    call.rows = count, call.columns = m, call.first_row = first;
    call.row_labels = p.call.row_labels;
    call.column_labels = p.call.row_labels == nullptr ? nullptr : column_labels.data();
    call.label_words = p.call.label_words;
    call.column_label_count =
        call.column_labels == nullptr ? 0 : static_cast<int64_t>(column_labels.size()) / std::max<int64_t>(p.call.label_words, 1);
    call.has_ignore_index = p.call.has_ignore_index, call.ignore_index = p.call.ignore_index;
    call.self = p.call.self, call.target_is_row = p.call.target_is_row, call.same_label_is_positive = p.call.same_label_is_positive;
    if (p.call.temperature != nullptr) call.temperature = temperature.data(), call.temperature_stride = p.call.temperature_per_row;
    if (p.call.weights != nullptr) call.weights = weights.data();
    call.losses = row_losses.data(), call.temperature_slopes = along.data(), call.stats = row_stats.data();
    PAIRLOOM_LAUNCH((cuda::pair_rows<Rule, T, Slope>), static_cast<unsigned>(count), cuda::kThreads, nullptr, call, rule);
    for (int64_t r = 0; r < count; ++r) {
      const int64_t i = first + r;
      losses.push_back(row_losses[r]);
      for (int k = 0; k < kStatCount; ++k) stats[k] += row_stats[r * kStatCount + k];
      const double at = p.call.temperature == nullptr ? 1.0 : p.temperature[p.call.temperature_per_row ? i : 0];
      if (!d_temperature.empty()) d_temperature[p.call.temperature_per_row ? i : 0] -= static_cast<double>(along[r]) / at;
      for (int64_t j = 0; j < m; ++j) {
        const double slope =
            std::is_same_v<T, Slope> ? static_cast<double>(s[r * stride + j]) : as_double<T>(apart[apart.empty() ? 0 : r * stride + j]);
        for (int64_t k = 0; k < dim && slope != 0; ++k) {
          d_rows[i * dim + k] += slope * entry(p.column_rows(), column_labels, j, k);
          d_columns[j * dim + k] += slope * entry(p.rows, p.row_labels, i, k);
        }
      }
    }
  }
  std::vector<double> row_loss = wanted.row_loss;
  if (p.call.reduction == Reduction::none && p.call.weights != nullptr) {
    for (int64_t i = 0; i < n; ++i) losses[i] *= p.weights[i];
  }
  if (p.call.self) {
    for (size_t k = 0; k < d_rows.size(); ++k) d_rows[k] += d_columns[k];
  } else {
    check(error(d_columns, wanted.d_columns, 1e-3) < share, "gradient of the columns", where);
  }
  check(error(losses, row_loss, 1e-3) < share, "losses of the rows", where);
  check(error(d_rows, wanted.d_rows, 1e-3) < share, "gradient of the rows", where);
  check(error(d_temperature, wanted.d_temperature, std::max(wanted.temperature_terms, 1e-3)) < share, "gradient of the temperature", where);
  for (int k = 0; k < kTiles; ++k) {
    const bool sum = k == kPositiveSimilaritySum || k == kNegativeSimilaritySum;
    check(sum ? error({stats[k]}, {wanted.stats[k]}, 1.0) < 1e-5 : stats[k] == wanted.stats[k], "statistic " + std::to_string(k), where);
  }
}

template <class T, class Slope>
void all_rules(int64_t n, int64_t m, int64_t dim, int variant, bool self, std::mt19937& random, double share) {
  Problem p(n, m, dim, DType::f32, variant, self, random);
  p.call.similarity = Similarity::dot;
  p.call.reduction = variant % 2 == 0 ? Reduction::sum : Reduction::none;
  if (p.call.reduction == Reduction::none) p.call.weights = nullptr;  // per-row losses come without gradients of their sum
  if (variant % 3 != 2) p.use_labels();
  if (variant % 5 == 4) p.use_sets(2, random);
  const bool labelled = p.call.row_labels != nullptr;
  if (labelled && p.call.has_ignore_index) p.spoil_ignored();
  const std::string name = std::to_string(n) + " x " + std::to_string(m) + " x " + std::to_string(dim) + ", variant " +
                           std::to_string(variant) + (self ? ", self" : "");
  p.call.same_label_is_positive = true;
  p.use_temperature(variant % 2 == 0);
  {
    Problem& q = p;
    q.call.target_is_row = !self && !labelled;
    compare<T, Slope>("sup_con " + name, q, naive::SupCon<T>(SupConCall{{}, variant % 4 == 1}),
                      naive::SupCon<double>(SupConCall{{}, variant % 4 == 1}), share);
    compare<T, Slope>("info_nce " + name, q, naive::InfoNce<T>(InfoNceCall{}), naive::InfoNce<double>(InfoNceCall{}), share);
    q.call.target_is_row = !self && n <= m;
    q.call.same_label_is_positive = false;
    compare<T, Slope>("info_nce, own key, " + name, q, naive::InfoNce<T>(InfoNceCall{}), naive::InfoNce<double>(InfoNceCall{}), share);
  }
  p.call.target_is_row = false, p.call.same_label_is_positive = true, p.call.temperature = nullptr;
  const MultiSimilarityCall settings{{}, 2.0, 10.0, 0.5, 0.1, variant % 2 == 0};
  compare<T, Slope>("multi_similarity " + name, p, naive::MultiSimilarity<T>(settings), naive::MultiSimilarity<double>(settings), share);
}

}  // namespace
}  // namespace pairloom::tests

// Without argument all sizes; "some" of them, or "few" small cases for sanitizers.
int main(int count, char** arguments) {
  using namespace pairloom::tests;
  std::mt19937 random(7);
  const std::string amount = count > 1 ? arguments[1] : "all";
  std::vector<std::vector<int64_t>> sizes = {{0, 5, 2},  {3, 0, 2},  {1, 1, 1},  {5, 31, 3}, {4, 33, 2},
                                             {6, 63, 3}, {7, 64, 4}, {4, 65, 3}, {9, 130, 2}};
  if (amount == "some") sizes = {{0, 5, 2}, {3, 0, 2}, {1, 1, 1}, {5, 33, 3}, {4, 64, 2}, {3, 130, 3}};
  if (amount == "few") sizes = {{4, 67, 3}};
  int variant = 0;
  for (const auto& size : sizes) {
    for (const bool self : {false, true}) {
      for (int repeat = 0; repeat < (amount == "all" ? 5 : 1); ++repeat, ++variant) {
        all_rules<double, double>(size[0], size[1], size[2], variant, self, random, 1e-11);
        all_rules<float, float>(size[0], size[1], size[2], variant, self, random, 3e-5);
        if (repeat % 2 == 0) all_rules<float, pairloom::cuda::BFloat16>(size[0], size[1], size[2], variant, self, random, 1e-2);
      }
    }
  }
  std::printf(failures == 0 ? "all equal\n" : "%d differences\n", failures);
  return failures != 0;
}
