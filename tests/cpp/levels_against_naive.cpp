// Every instruction-set level of every kernel equals a naive driver in double precision, over shapes at and beside tile edges, with
// strided inputs, all reductions, labels, weights and temperatures; and gives the same bits however the work is split over threads.
//
// The naive driver shares the rule headers and nothing else: it runs them on plain doubles, one pair at a time, and decides which
// pairs are positive and negative by comparing labels.
#define PAIRLOOM_ISA naive  // a namespace of its own for the headers that are compiled into this program

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cpu/kernels.h"
#include "rules/info_nce.h"
#include "rules/multi_similarity.h"
#include "rules/sup_con.h"

namespace {

using namespace pairloom;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kIgnored = -100;

// A matrix whose rows lie in memory with a gap of NaN after each.
template <class T>
struct Rows {
  int64_t count, dim, stride;
  std::vector<T> data;

  Rows(int64_t n, int64_t d, std::mt19937& random)
      : count(n), dim(d), stride(d + 3), data(n * stride, std::numeric_limits<T>::quiet_NaN()) {
    std::normal_distribution<float> normal;  // floats: both compute types see the same numbers
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t k = 0; k < d; ++k) data[i * stride + k] = static_cast<T>(normal(random));
    }
    if (n > 2) std::fill_n(data.begin() + 2 * stride, d, T{0});  // one zero row
  }
  Matrix matrix() const {
    return {.data = data.data(),
            .rows = count,
            .dim = dim,
            .row_stride = stride,
            .column_stride = 1,
            .dtype = sizeof(T) == 8 ? DType::f64 : DType::f32};
  }
  double at(int64_t i, int64_t k) const { return static_cast<double>(data[i * stride + k]); }
};

// One case of a pair loss: inputs, and the call that reads them.
template <class T>
struct Problem {
  Rows<T> rows, columns;
  std::vector<double> temperature, weights;
  std::vector<int64_t> row_labels, column_labels;
  PairLossCall call{};

  Problem(int64_t n, int64_t m, int64_t d, int variant, bool self, std::mt19937& random) : rows(n, d, random), columns(m, d, random) {
    std::uniform_real_distribution<double> uniform(0.1, 1.0);
    std::uniform_int_distribution<int64_t> label(0, std::max<int64_t>(n / 3, 1));
    const auto labels = [&](int64_t count) {
      std::vector<int64_t> all(count);
      for (int64_t& one : all) one = uniform(random) < 0.2 ? kIgnored : (int64_t{1} << 62) + label(random);
      return all;
    };
    for (int64_t i = 0; i < n; ++i) {
      temperature.push_back(uniform(random));
      weights.push_back(i % 5 == 1 ? 0.0 : uniform(random));
    }
    row_labels = labels(n);
    column_labels = labels(m - m / 4);  // the last ones have no label
    constexpr Reduction reductions[] = {Reduction::mean, Reduction::mean_nonzero, Reduction::sum, Reduction::none};
    call.rows = rows.matrix();
    call.columns = columns.matrix();
    call.self = self;
    call.similarity = variant % 2 == 0 ? Similarity::cosine : Similarity::dot;
    call.reduction = reductions[variant / 2 % 4];
    if (variant / 2 % 2 == 0) call.weights = weights.data();
    call.has_ignore_index = variant % 3 != 0;
    call.ignore_index = kIgnored;
  }
  int64_t m() const { return call.self ? rows.count : columns.count; }
  const Rows<T>& column_rows() const { return call.self ? rows : columns; }
};

struct Answer {
  std::vector<double> row_loss, d_rows, d_columns, d_temperature;
  double loss = 0;
  double stats[kStatCount] = {};
  double temperature_terms = 0;  // what the gradient of the temperature is a sum of, without signs
};

template <class T>
std::vector<double> direction(const Rows<T>& x, int64_t i, Similarity similarity, double* length) {
  std::vector<double> y(x.dim);
  double squares = 0;
  for (int64_t k = 0; k < x.dim; ++k) squares += x.at(i, k) * x.at(i, k);
  *length = similarity == Similarity::cosine ? std::sqrt(squares) : 1.0;
  for (int64_t k = 0; k < x.dim; ++k) y[k] = *length < kNormFloor ? 0.0 : x.at(i, k) / *length;
  return y;
}

// Adds dL/dx to `out`, given dL/dy for the direction y of x.
void through_direction(const std::vector<double>& y, const std::vector<double>& d_y, double length, bool cosine, double* out) {
  double along = 0;
  for (size_t k = 0; k < y.size(); ++k) along += cosine ? y[k] * d_y[k] : 0.0;
  for (size_t k = 0; k < y.size(); ++k) out[k] += length < kNormFloor ? 0.0 : (d_y[k] - along * y[k]) / length;
}

// The definition, pair by pair.
template <class T, class Rule>
Answer naive_answer(const Problem<T>& p, const Rule& rule) {
  const PairLossCall& call = p.call;
  const int64_t n = p.rows.count, m = p.m(), dim = p.rows.dim;
  const bool cosine = call.similarity == Similarity::cosine;
  Answer answer;
  answer.row_loss.assign(n, 0.0);
  answer.d_temperature.assign(call.temperature == nullptr ? 0 : call.temperature_per_row ? n : 1, 0.0);
  std::vector<std::vector<double>> x, y, d_x(n, std::vector<double>(dim)), d_y(m, std::vector<double>(dim)), slope(n);
  std::vector<double> x_length(n), y_length(m), weight(n), at(n);
  for (int64_t i = 0; i < n; ++i) x.push_back(direction(p.rows, i, call.similarity, &x_length[i]));
  for (int64_t j = 0; j < m; ++j) y.push_back(direction(p.column_rows(), j, call.similarity, &y_length[j]));

  const int64_t* column_labels = call.self ? call.row_labels : call.column_labels;
  const int64_t labelled = column_labels == nullptr ? 0 : call.self ? n : call.column_label_count;
  double divisor = 0;
  for (int64_t i = 0; i < n; ++i) {
    const bool has_label = call.row_labels != nullptr;
    const bool ignored = has_label && call.has_ignore_index && call.row_labels[i] == call.ignore_index;
    weight[i] = ignored ? 0.0 : call.weights != nullptr ? call.weights[i] : 1.0;
    at[i] = call.temperature == nullptr ? 1.0 : call.temperature[call.temperature_per_row ? i : 0];
    slope[i].assign(m, 0.0);
    if (ignored) continue;
    std::vector<char> positive(m), negative(m);
    std::vector<double> z(m);
    naive::Extremes<double> extremes;
    for (int64_t j = 0; j < m; ++j) {
      const bool known = j < labelled;
      const bool same = known && has_label && column_labels[j] == call.row_labels[i];
      const bool nobody = (known && call.has_ignore_index && column_labels[j] == call.ignore_index) || (call.self && i == j);
      const bool own = call.target_is_row && i == j;
      positive[j] = !nobody && (own || (same && call.same_label_is_positive));
      negative[j] = !nobody && !own && !same;
      double s = 0;
      for (int64_t k = 0; k < dim; ++k) s += x[i][k] * y[j][k];
      z[j] = s / at[i];
      if (positive[j]) extremes.min_positive = std::min(extremes.min_positive, z[j]);
      if (positive[j]) extremes.max_positive = std::max(extremes.max_positive, z[j]);
      if (negative[j]) extremes.max_negative = std::max(extremes.max_negative, z[j]);
    }
    typename Rule::Row row = rule.begin(extremes);
    double sums[Rule::kSums] = {};
    for (int64_t j = 0; j < m; ++j) rule.add(sums, z[j], bool(positive[j]), bool(negative[j]), row);
    rule.end_sums(row, sums);
    for (int64_t j = 0; j < m; ++j) {
      if (Rule::kVisitsPositives && positive[j]) rule.add_positive(row, z[j]);
    }
    rule.end(row);
    answer.row_loss[i] = row.loss;
    for (int64_t j = 0; j < m; ++j) slope[i][j] = rule.weigh(z[j], bool(positive[j]), bool(negative[j]), row);

    double counts[kStatCount] = {1};
    for (int64_t j = 0; j < m; ++j) {
      counts[kPositives] += positive[j];
      counts[kNegatives] += negative[j];
      counts[kMinedPositives] += positive[j] && rule.mined_positive(z[j], row);
      counts[kMinedNegatives] += negative[j] && rule.mined_negative(z[j], row);
      counts[kPositiveSimilaritySum] += positive[j] ? z[j] * at[i] : 0.0;
      counts[kNegativeSimilaritySum] += negative[j] ? z[j] * at[i] : 0.0;
    }
    counts[kAnchorsWithoutPositive] = counts[kPositives] == 0;
    counts[kAnchorsWithoutNegative] = counts[kNegatives] == 0;
    counts[kTop1Hits] = extremes.max_positive > extremes.max_negative;
    counts[kActiveAnchors] = row.loss > 0;
    for (int k = 0; k < kStatCount; ++k) answer.stats[k] += counts[k];
    if (call.reduction == Reduction::mean || (call.reduction == Reduction::mean_nonzero && row.loss != 0)) divisor += weight[i];
  }
  if (call.reduction == Reduction::sum || call.reduction == Reduction::none) divisor = 1;

  for (int64_t i = 0; i < n; ++i) {
    const double share = divisor > 0 ? weight[i] / divisor : 0.0;
    answer.loss += share * answer.row_loss[i];
    if (call.reduction == Reduction::none) answer.row_loss[i] *= weight[i];
    for (int64_t j = 0; j < m; ++j) {
      const double d_s = share * slope[i][j] / at[i];
      double s = 0;
      for (int64_t k = 0; k < dim; ++k) {
        s += x[i][k] * y[j][k];
        d_x[i][k] += d_s * y[j][k];
        d_y[j][k] += d_s * x[i][k];
      }
      if (call.temperature != nullptr) answer.d_temperature[call.temperature_per_row ? i : 0] -= d_s * s / at[i];
      answer.temperature_terms += std::fabs(d_s * s / at[i]);
    }
  }
  answer.d_rows.assign(n * dim, 0.0);
  answer.d_columns.assign(call.self ? 0 : m * dim, 0.0);
  for (int64_t i = 0; i < n; ++i) through_direction(x[i], d_x[i], x_length[i], cosine, &answer.d_rows[i * dim]);
  for (int64_t j = 0; j < m; ++j) {
    through_direction(y[j], d_y[j], y_length[j], cosine, call.self ? &answer.d_rows[j * dim] : &answer.d_columns[j * dim]);
  }
  return answer;
}

// Ways to split the work: all at once, in pieces from the last to the first, and on real threads.
void whole(int64_t count, Parallel::Task task, void* context) { task(context, 0, count); }
void backwards(int64_t count, Parallel::Task task, void* context) {
  for (int64_t piece = 6; piece >= 0; --piece) {
    if (count * piece / 7 < count * (piece + 1) / 7) task(context, count * piece / 7, count * (piece + 1) / 7);
  }
}
void threads(int64_t count, Parallel::Task task, void* context) {
  std::vector<std::thread> pool;
  for (int64_t piece = 0; piece < 3; ++piece) {
    if (count * piece / 3 < count * (piece + 1) / 3) pool.emplace_back(task, context, count * piece / 3, count * (piece + 1) / 3);
  }
  for (std::thread& thread : pool) thread.join();
}
constexpr Parallel kPools[] = {{whole, 1}, {backwards, 7}, {threads, 3}};

template <class T, class Call>
Answer kernel_answer(const Problem<T>& p, Call call, const Kernel<Call>& kernel, const Parallel& pool) {
  const int64_t n = p.rows.count, m = p.m(), dim = p.rows.dim;
  const bool gradients = p.call.reduction != Reduction::none;
  std::vector<T> row_loss(n), d_rows(gradients ? n * dim : 0), d_columns(gradients && !p.call.self ? m * dim : 0);
  Answer answer;
  answer.d_temperature.assign(p.call.temperature == nullptr ? 0 : p.call.temperature_per_row ? n : 1, 0.0);
  call.pairs = p.call;
  call.pairs.row_loss = row_loss.data();
  call.pairs.d_rows = gradients ? d_rows.data() : nullptr;
  call.pairs.d_columns = gradients && !p.call.self ? d_columns.data() : nullptr;
  call.pairs.d_temperature = gradients && p.call.temperature != nullptr ? answer.d_temperature.data() : nullptr;
  call.pairs.stats = answer.stats;
  call.pairs.loss = &answer.loss;
  (sizeof(T) == 8 ? kernel.f64 : kernel.f32)(call, pool);
  answer.row_loss.assign(row_loss.begin(), row_loss.end());
  answer.d_rows.assign(d_rows.begin(), d_rows.end());
  answer.d_columns.assign(d_columns.begin(), d_columns.end());
  return answer;
}

int failures = 0;

void check(bool holds, const std::string& what, const std::string& where) {
  if (holds) return;
  ++failures;
  std::printf("%s: %s\n", where.c_str(), what.c_str());
}

// Largest difference relative to the largest value (or to `magnitude`, where that is larger); sizes must agree.
double error(const std::vector<double>& ours, const std::vector<double>& exact, double magnitude = 0) {
  if (ours.size() != exact.size()) return kInfinity;
  double difference = 0;
  magnitude = std::max(magnitude, 1e-30);
  for (size_t i = 0; i < ours.size(); ++i) {
    difference = std::max(difference, std::isfinite(ours[i]) ? std::fabs(ours[i] - exact[i]) : kInfinity);
    magnitude = std::max(magnitude, std::fabs(exact[i]));
  }
  return difference / magnitude;
}

template <class T, class Call>
void compare(const Problem<T>& p, const Call& call, const Kernel<Call> Kernels::* kernel, const Answer& exact, const std::string& where) {
  // Sums of at most 513 products, exponents of at most 50: some hundred roundings.
  const double tolerance = sizeof(T) == 8 ? 1e-11 : 3e-5;
  const Answer ours = kernel_answer(p, call, kernels().*kernel, kPools[0]);
  check(error({ours.loss}, {exact.loss}) < tolerance, "loss", where);
  check(error(ours.row_loss, exact.row_loss) < tolerance, "losses of the rows", where);
  if (p.call.reduction != Reduction::none) {
    check(error(ours.d_rows, exact.d_rows) < tolerance, "gradient of the rows", where);
    check(error(ours.d_columns, exact.d_columns) < tolerance, "gradient of the columns", where);
    check(error(ours.d_temperature, exact.d_temperature, exact.temperature_terms) < tolerance, "gradient of the temperature", where);
  }
  for (int k = 0; k < kStatCount; ++k) {
    const bool sum = k == kPositiveSimilaritySum || k == kNegativeSimilaritySum;
    const double pairs = exact.stats[kPositives] + exact.stats[kNegatives] + 1;
    check(sum ? std::fabs(ours.stats[k] - exact.stats[k]) < tolerance * 30 * pairs : ours.stats[k] == exact.stats[k],
          "statistic " + std::to_string(k), where);
  }
  for (const Parallel& pool : kPools) {
    const Answer again = kernel_answer(p, call, kernels().*kernel, pool);
    check(again.loss == ours.loss && again.row_loss == ours.row_loss && again.d_rows == ours.d_rows && again.d_columns == ours.d_columns &&
              again.d_temperature == ours.d_temperature && std::equal(again.stats, again.stats + kStatCount, ours.stats),
          "bits depend on how the work is split", where);
  }
}

struct Shape {
  int64_t n, m, dim;
};
constexpr Shape kShapes[] = {{0, 0, 3},    {0, 5, 3},    {1, 1, 1},    {1, 9, 2},     {2, 5, 3},     {6, 7, 16},     {7, 16, 17},
                             {17, 31, 33}, {33, 64, 65}, {63, 65, 15}, {64, 127, 32}, {127, 253, 5}, {130, 513, 31}, {257, 300, 7}};

template <class T>
void check_losses(const std::string& level) {
  std::mt19937 random(7);
  for (const Shape& shape : kShapes) {
    for (int variant = 0; variant < 24; variant += shape.n > 60 ? 5 : 1) {
      const std::string where = level + (sizeof(T) == 8 ? " f64 " : " f32 ") + std::to_string(shape.n) + "x" + std::to_string(shape.m) +
                                "x" + std::to_string(shape.dim) + " variant " + std::to_string(variant);
      {
        Problem<T> p(shape.n, shape.m, shape.dim, variant, false, random);
        p.call.target_is_row = true;
        p.call.same_label_is_positive = variant % 3 == 1;
        p.call.temperature = p.temperature.data();
        p.call.temperature_per_row = variant % 4 == 3 && shape.n > 0;
        if (shape.n == 0) p.temperature = {0.5}, p.call.temperature = p.temperature.data();
        if (variant % 5 != 0) {
          p.call.row_labels = p.row_labels.data();
          p.call.column_labels = p.column_labels.data();
          p.call.column_label_count = static_cast<int64_t>(p.column_labels.size());
        }
        const InfoNceCall call{};
        compare(p, call, &Kernels::info_nce, naive_answer(p, naive::InfoNce<double>(call)), where + " info_nce");
      }
      {
        Problem<T> p(shape.n, shape.m, shape.dim, variant, variant % 2 == 0, random);
        p.call.same_label_is_positive = true;
        p.call.row_labels = p.row_labels.data();
        p.call.column_labels = p.column_labels.data();
        p.call.column_label_count = static_cast<int64_t>(p.column_labels.size());
        const double steep = p.call.similarity == Similarity::cosine ? 20.0 : 2.0;
        const MultiSimilarityCall call{.pairs = {}, .alpha = 2.0, .beta = steep, .base = 0.5, .epsilon = 0.1, .mining = variant % 3 == 0};
        compare(p, call, &Kernels::multi_similarity, naive_answer(p, naive::MultiSimilarity<double>(call)), where + " multi_similarity");

        p.call.temperature = p.temperature.data();
        p.call.temperature_per_row = variant % 4 == 3 && shape.n > 0;
        if (shape.n == 0) p.temperature = {0.5}, p.call.temperature = p.temperature.data();
        const SupConCall contrastive{.pairs = {}, .inside = variant % 3 == 0};
        compare(p, contrastive, &Kernels::sup_con, naive_answer(p, naive::SupCon<double>(contrastive)), where + " sup_con");
      }
    }
  }
}

template <class T>
double naive_similarity(const Rows<T>& a, int64_t i, const Rows<T>& b, int64_t j, Similarity similarity) {
  double length, sum = 0;
  const std::vector<double> x = direction(a, i, similarity, &length), y = direction(b, j, similarity, &length);
  const bool product = similarity == Similarity::cosine || similarity == Similarity::dot;
  for (size_t k = 0; k < x.size(); ++k) sum += product ? x[k] * y[k] : -(x[k] - y[k]) * (x[k] - y[k]);
  return similarity == Similarity::euclidean ? -std::sqrt(-sum) : sum;
}

template <class T>
void check_scores(const std::string& level) {
  std::mt19937 random(8);
  for (const Shape& shape : kShapes) {
    for (const Similarity similarity : {Similarity::cosine, Similarity::dot, Similarity::euclidean, Similarity::squared_euclidean}) {
      const std::string where = level + (sizeof(T) == 8 ? " f64 " : " f32 ") + std::to_string(shape.n) + "x" + std::to_string(shape.m) +
                                "x" + std::to_string(shape.dim) + " similarity " + std::to_string(static_cast<int>(similarity));
      const Rows<T> a(shape.n, shape.dim, random), b(shape.m, shape.dim, random);
      std::vector<T> matrix(shape.n * shape.m);
      const PairwiseCall call{a.matrix(), b.matrix(), similarity, matrix.data()};
      (sizeof(T) == 8 ? kernels().pairwise_similarity.f64 : kernels().pairwise_similarity.f32)(call, kPools[1]);
      std::vector<double> exact;
      for (int64_t i = 0; i < shape.n; ++i) {
        for (int64_t j = 0; j < shape.m; ++j) exact.push_back(naive_similarity(a, i, b, j, similarity));
      }
      check(error({matrix.begin(), matrix.end()}, exact) < (sizeof(T) == 8 ? 1e-13 : 1e-5), "similarity matrix", where);

      for (const int64_t k : {int64_t{0}, int64_t{1}, int64_t{5}, shape.m, shape.m + 3}) {
        for (const Parallel& pool : kPools) {
          std::vector<T> scores(shape.n * k);
          std::vector<int64_t> indices(shape.n * k);
          const TopkCall top{a.matrix(), b.matrix(), similarity, k, scores.data(), indices.data()};
          (sizeof(T) == 8 ? kernels().topk.f64 : kernels().topk.f32)(top, pool);
          for (int64_t i = 0; i < shape.n; ++i) {
            // Its scores are those of the matrix, bit by bit, so the order is known exactly.
            std::vector<int64_t> order(shape.m);
            for (int64_t j = 0; j < shape.m; ++j) order[j] = j;
            const T* row = matrix.data() + i * shape.m;
            std::stable_sort(order.begin(), order.end(), [&](int64_t p, int64_t q) { return row[p] > row[q]; });
            bool right = true;
            for (int64_t r = 0; r < k; ++r) {
              const bool there = r < shape.m;
              right &= indices[i * k + r] == (there ? order[r] : -1);
              right &= scores[i * k + r] == (there ? row[order[r]] : -std::numeric_limits<T>::infinity());
            }
            check(right, "top " + std::to_string(k) + " of query " + std::to_string(i), where);
          }
        }
      }
    }
  }
}

}  // namespace

int main() {
  for (int i = 0; i < isa_count(); ++i) {
    set_isa(isa_level(i));
    check_losses<float>(isa_name());
    check_losses<double>(isa_name());
    check_scores<float>(isa_name());
    check_scores<double>(isa_name());
  }
  std::printf("%d levels, %d failures\n", isa_count(), failures);
  return failures == 0 ? 0 : 1;
}
