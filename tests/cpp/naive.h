// What the programs of this folder share: problems of the pair losses, their definition as a naive driver in double precision, and
// the comparison of every instruction-set level with it.
//
// The naive driver shares the rule headers and nothing else: it runs them on plain doubles, one pair at a time, and decides which
// pairs are positive and negative by comparing labels.
#pragma once

#define PAIRLOOM_ISA naive  // a namespace of its own for the headers that are compiled into these programs

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cpu/kernels.h"
#include "rules/info_nce.h"
#include "rules/multi_similarity.h"
#include "rules/sup_con.h"

namespace pairloom::tests {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kIgnored = -100;

inline int64_t bytes_of(DType dtype) { return dtype == DType::f64 ? 8 : dtype == DType::f32 ? 4 : 2; }
inline const char* name_of(DType dtype) {
  return dtype == DType::f64 ? "f64" : dtype == DType::f32 ? "f32" : dtype == DType::f16 ? "f16" : "bf16";
}

// `value` in the format of `dtype` to `out`; returns what is stored, rounded towards zero.
inline double put(DType dtype, double value, char* out) {
  const float single = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &single, sizeof bits);
  if (dtype == DType::f64) {
    std::memcpy(out, &value, sizeof value);
    return value;
  }
  if (dtype == DType::f32) {
    std::memcpy(out, &single, sizeof single);
    return static_cast<double>(single);
  }
  uint16_t half = static_cast<uint16_t>(bits >> 16);
  double stored;
  if (dtype == DType::bf16) {
    bits &= 0xffff0000u;
    float rounded;
    std::memcpy(&rounded, &bits, sizeof rounded);
    stored = static_cast<double>(rounded);
  } else if (!std::isfinite(value)) {
    half = std::isnan(value) ? 0x7e00 : 0x7c00, stored = value;
  } else {  // 10 bits of fraction, exponents from -14 on, below that multiples of 2^-24
    const int exponent = std::max(value == 0 ? -14 : std::ilogb(value), -14);
    const double fraction = std::trunc(std::ldexp(std::fabs(value), 10 - exponent));
    stored = std::copysign(std::ldexp(fraction, exponent - 10), value);
    half = static_cast<uint16_t>((std::signbit(value) ? 0x8000 : 0) + ((exponent + 14) << 10) + static_cast<int>(fraction));
  }
  std::memcpy(out, &half, sizeof half);
  return stored;
}

// A matrix whose rows lie in memory with a gap of NaN after each. Row 2 is zero, row 4 the same as row 3.
struct Rows {
  int64_t count, dim, stride;
  DType dtype;
  std::vector<double> exact;
  std::vector<char> data;

  Rows(int64_t n, int64_t d, DType type, std::mt19937& random)
      : count(n), dim(d), stride(d + 3), dtype(type), exact(n * d), data(n * stride * bytes_of(type)) {
    std::normal_distribution<float> normal;  // floats: both compute types see the same numbers
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t k = 0; k < stride; ++k) {
        const double fresh = k < d ? static_cast<double>(normal(random)) : kNaN;
        set(i, k, i == 2 && k < d ? 0.0 : i == 4 && k < d ? at(3, k) : fresh);
      }
    }
  }
  void set(int64_t i, int64_t k, double value) {
    const double stored = put(dtype, value, data.data() + (i * stride + k) * bytes_of(dtype));
    if (k < dim) exact[i * dim + k] = stored;
  }
  double at(int64_t i, int64_t k) const { return exact[i * dim + k]; }
  Matrix matrix() const {
    return {.data = data.data(), .rows = count, .dim = dim, .row_stride = stride, .column_stride = 1, .dtype = dtype};
  }
};

// Ids of about three rows each, or sets of ids as bits of `words` words; some rows are ignored, and some sets are empty.
inline std::vector<int64_t> random_labels(int64_t count, int64_t classes, int64_t words, std::mt19937& random) {
  std::uniform_int_distribution<int64_t> label(0, std::max<int64_t>(classes, 1));
  std::uniform_int_distribution<int> percent(0, 99);
  std::vector<int64_t> all;
  for (int64_t i = 0; i < count; ++i) {
    const bool ignored = percent(random) < 20;
    if (words == 0) all.push_back(ignored ? kIgnored : (int64_t{1} << 62) + label(random));
    for (int64_t w = 0; w < words; ++w) {
      int64_t word = 0;
      for (int bits = percent(random) % 3; bits > 0; --bits) word |= int64_t{1} << (label(random) % 32);
      all.push_back(ignored ? -1 : word);
    }
  }
  return all;
}

// Whether labels i and j are the same id, or sets with a common member.
inline bool same_label(const PairLossCall& call, const int64_t* a, int64_t i, const int64_t* b, int64_t j) {
  if (call.label_words == 0) return a[i] == b[j];
  for (int64_t w = 0; w < call.label_words; ++w) {
    if ((a[i * call.label_words + w] & b[j * call.label_words + w]) != 0) return true;
  }
  return false;
}
inline bool has_ignored_label(const PairLossCall& call, const int64_t* labels, int64_t i) {
  if (labels == nullptr || !call.has_ignore_index) return false;
  return call.label_words == 0 ? labels[i] == call.ignore_index : labels[i * call.label_words] == -1;
}

// NaN and infinity in the rows of `x` that take no part.
inline void spoil_ignored(Rows& x, const PairLossCall& call, const std::vector<int64_t>& labels) {
  const int64_t labelled = static_cast<int64_t>(labels.size()) / std::max<int64_t>(call.label_words, 1);
  for (int64_t i = 0; call.row_labels != nullptr && i < std::min(x.count, labelled); ++i) {
    if (has_ignored_label(call, labels.data(), i)) x.set(i, i % x.dim, i % 2 == 0 ? kNaN : kInfinity);
  }
}

// One case of a pair loss: inputs, and the call that reads them.
struct Problem {
  Rows rows, columns;
  std::vector<double> temperature, weights;
  std::vector<int64_t> row_labels, column_labels;
  PairLossCall call{};
  bool statistics = true;

  Problem(int64_t n, int64_t m, int64_t d, DType dtype, int variant, bool self, std::mt19937& random)
      : rows(n, d, dtype, random), columns(m, d, dtype, random) {
    std::uniform_real_distribution<double> uniform(0.1, 1.0);
    for (int64_t i = 0; i < n; ++i) {
      temperature.push_back(uniform(random));
      weights.push_back(i % 5 == 1 ? 0.0 : uniform(random));
    }
    if (temperature.empty()) temperature.push_back(0.5);
    for (int64_t k = 0; n > 3 && m > 1 && k < d; ++k) columns.set(1, k, rows.at(3, k));  // at distance 0
    row_labels = random_labels(n, n / 3, 0, random);
    column_labels = random_labels(m - m / 4, n / 3, 0, random);  // the last ones have no label
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
  Problem(const Problem&) = delete;  // the call points into it
  Problem& operator=(const Problem&) = delete;

  int64_t m() const { return call.self ? rows.count : columns.count; }
  const Rows& column_rows() const { return call.self ? rows : columns; }
  void use_temperature(bool per_row) {
    call.temperature = temperature.data();
    call.temperature_per_row = per_row && rows.count > 0;
  }
  void use_labels() {
    call.row_labels = row_labels.data();
    call.column_labels = column_labels.data();
    call.column_label_count = static_cast<int64_t>(column_labels.size()) / std::max<int64_t>(call.label_words, 1);
  }
  // Sets of labels in place of ids.
  void use_sets(int64_t words, std::mt19937& random) {
    row_labels = random_labels(rows.count, 32, words, random);
    column_labels = random_labels(columns.count - columns.count / 4, 32, words, random);
    for (std::vector<int64_t>* labels : {&row_labels, &column_labels}) {  // without ignored rows no word is -1
      if (!call.has_ignore_index) std::replace(labels->begin(), labels->end(), int64_t{-1}, int64_t{0});
    }
    call.label_words = words;
    use_labels();
  }
  void spoil_ignored() {
    tests::spoil_ignored(rows, call, row_labels);
    tests::spoil_ignored(columns, call, column_labels);
  }
};

struct Answer {
  std::vector<double> row_loss, d_rows, d_columns, d_temperature;
  double loss = 0;
  double stats[kStatCount] = {};
  double temperature_terms = 0;  // what the gradient of the temperature is a sum of, without signs
};

inline std::vector<double> direction(const Rows& x, int64_t i, Similarity similarity, double* length) {
  std::vector<double> y(x.dim);
  double squares = 0;
  for (int64_t k = 0; k < x.dim; ++k) squares += x.at(i, k) * x.at(i, k);
  *length = similarity == Similarity::cosine ? std::sqrt(squares) : 1.0;
  for (int64_t k = 0; k < x.dim; ++k) y[k] = *length < kNormFloor ? 0.0 : x.at(i, k) / *length;
  return y;
}

// Adds dL/dx to `out`, given dL/dy for the direction y of x; rows that take no part need not be finite.
inline void through_direction(const std::vector<double>& y, const std::vector<double>& d_y, double length, bool cosine, double* out) {
  if (std::all_of(d_y.begin(), d_y.end(), [](double d) { return d == 0; })) return;
  double along = 0;
  for (size_t k = 0; k < y.size(); ++k) along += cosine ? y[k] * d_y[k] : 0.0;
  for (size_t k = 0; k < y.size(); ++k) out[k] += length < kNormFloor ? 0.0 : (d_y[k] - along * y[k]) / length;
}

// Similarity of two directions.
inline double similarity_of(Similarity similarity, const std::vector<double>& x, const std::vector<double>& y) {
  double sum = 0;
  for (size_t k = 0; k < x.size(); ++k) sum += is_distance(similarity) ? -(x[k] - y[k]) * (x[k] - y[k]) : x[k] * y[k];
  return similarity == Similarity::euclidean ? -std::sqrt(-sum) : sum;
}

// Adds d_s ds/dx and d_s ds/dy, given s.
inline void add_gradients(Similarity similarity, const std::vector<double>& x, const std::vector<double>& y, double s, double d_s,
                          std::vector<double>& d_x, std::vector<double>& d_y) {
  const double pull = similarity == Similarity::squared_euclidean ? 2 * d_s : s == 0 ? 0.0 : d_s / -s;
  for (size_t k = 0; k < x.size(); ++k) {
    d_x[k] += is_distance(similarity) ? pull * (y[k] - x[k]) : d_s * y[k];
    d_y[k] += is_distance(similarity) ? pull * (x[k] - y[k]) : d_s * x[k];
  }
}

// The definition, pair by pair.
template <class Rule>
Answer naive_answer(const Rows& rows, const Rows& columns, const PairLossCall& call, const Rule& rule) {
  const int64_t n = rows.count, m = columns.count, dim = rows.dim;
  Answer answer;
  answer.row_loss.assign(n, 0.0);
  answer.d_temperature.assign(call.temperature == nullptr ? 0 : call.temperature_per_row ? n : 1, 0.0);
  std::vector<std::vector<double>> x, y, d_x(n, std::vector<double>(dim)), d_y(m, std::vector<double>(dim)), similarity(n), slope(n);
  std::vector<double> x_length(n), y_length(m), weight(n), at(n);
  for (int64_t i = 0; i < n; ++i) x.push_back(direction(rows, i, call.similarity, &x_length[i]));
  for (int64_t j = 0; j < m; ++j) y.push_back(direction(columns, j, call.similarity, &y_length[j]));

  const int64_t* column_labels = call.self ? call.row_labels : call.column_labels;
  const int64_t labelled = column_labels == nullptr ? 0 : call.self ? n : call.column_label_count;
  double divisor = 0;
  for (int64_t i = 0; i < n; ++i) {
    const bool ignored = has_ignored_label(call, call.row_labels, i);
    weight[i] = ignored ? 0.0 : call.weights != nullptr ? call.weights[i] : 1.0;
    at[i] = call.temperature == nullptr ? 1.0 : call.temperature[call.temperature_per_row ? i : 0];
    if (ignored) continue;
    slope[i].assign(m, 0.0);
    std::vector<char> positive(m), negative(m);
    std::vector<double>& s = similarity[i];
    std::vector<double> z(m);
    naive::Extremes<double> extremes;
    for (int64_t j = 0; j < m; ++j) {
      const bool known = j < labelled && call.row_labels != nullptr;
      const bool same = known && same_label(call, call.row_labels, i, column_labels, j);
      const bool nobody = (known && has_ignored_label(call, column_labels, j)) || (call.self && i == j);
      const bool own = call.target_is_row && i == j;
      positive[j] = !nobody && (own || (same && call.same_label_is_positive));
      negative[j] = !nobody && !own && !same;
      s.push_back(similarity_of(call.similarity, x[i], y[j]));
      z[j] = s[j] / at[i];
      if (positive[j]) extremes.min_positive = std::min(extremes.min_positive, z[j]);
      if (positive[j]) extremes.max_positive = std::max(extremes.max_positive, z[j]);
      if (negative[j]) extremes.max_negative = std::max(extremes.max_negative, z[j]);
    }
    typename Rule::Row row = rule.begin(extremes);
    double sums[Rule::kSums] = {};
    for (int64_t j = 0; j < m; ++j) rule.add(sums, z[j], bool(positive[j]), bool(negative[j]), row);
    rule.end_sums(row, sums);
    double positive_sums[Rule::kPositiveSums + 1] = {};
    for (int64_t j = 0; j < m; ++j) {
      if (positive[j]) rule.add_positive(positive_sums, z[j], row);
    }
    rule.end(row, positive_sums);
    answer.row_loss[i] = row.loss;
    for (int64_t j = 0; j < m; ++j) slope[i][j] = rule.weigh(z[j], bool(positive[j]), bool(negative[j]), row);

    double counts[kStatCount] = {1};
    for (int64_t j = 0; j < m; ++j) {
      counts[kPositives] += positive[j];
      counts[kNegatives] += negative[j];
      counts[kMinedPositives] += positive[j] && rule.mined_positive(z[j], row);
      counts[kMinedNegatives] += negative[j] && rule.mined_negative(z[j], row);
      counts[kPositiveSimilaritySum] += positive[j] ? s[j] : 0.0;
      counts[kNegativeSimilaritySum] += negative[j] ? s[j] : 0.0;
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
    for (int64_t j = 0; share != 0 && j < m; ++j) {
      const double d_s = share * slope[i][j] / at[i], s = similarity[i][j];
      if (d_s == 0) continue;  // also where a row that takes no part is not finite
      add_gradients(call.similarity, x[i], y[j], s, d_s, d_x[i], d_y[j]);
      if (call.temperature != nullptr) answer.d_temperature[call.temperature_per_row ? i : 0] -= d_s * s / at[i];
      answer.temperature_terms += std::fabs(d_s * s / at[i]);
    }
  }
  const bool cosine = call.similarity == Similarity::cosine;
  answer.d_rows.assign(n * dim, 0.0);
  answer.d_columns.assign(call.self ? 0 : m * dim, 0.0);
  for (int64_t i = 0; i < n; ++i) through_direction(x[i], d_x[i], x_length[i], cosine, &answer.d_rows[i * dim]);
  for (int64_t j = 0; j < m; ++j) {
    through_direction(y[j], d_y[j], y_length[j], cosine, call.self ? &answer.d_rows[j * dim] : &answer.d_columns[j * dim]);
  }
  return answer;
}
template <class Rule>
Answer naive_answer(const Problem& p, const Rule& rule) {
  return naive_answer(p.rows, p.column_rows(), p.call, rule);
}

// The mean of a rule taken both ways, by definition: two runs of the naive driver.
inline Answer naive_clip(const Problem& p) {
  const naive::InfoNce<double> rule{InfoNceCall{}};
  PairLossCall call = p.call;
  call.reduction = Reduction::sum;
  Answer answer = naive_answer(p.rows, p.columns, call, rule);
  const Answer back = naive_answer(p.columns, p.rows, call, rule);
  double divisor = 0;
  answer.loss = 0;
  for (int64_t i = 0; i < p.rows.count; ++i) {
    const double weight = has_ignored_label(call, call.row_labels, i) ? 0.0 : call.weights != nullptr ? call.weights[i] : 1.0;
    double& loss = answer.row_loss[i];
    loss = (loss + back.row_loss[i]) / 2;
    answer.loss += weight * loss;
    if (p.call.reduction == Reduction::mean || loss != 0) divisor += weight;
    if (p.call.reduction == Reduction::none) loss *= weight;
  }
  if (p.call.reduction == Reduction::sum || p.call.reduction == Reduction::none) divisor = 1;
  const double share = divisor > 0 ? 1 / divisor : 0;
  answer.loss *= share;
  const auto merge = [&](std::vector<double>& into, const std::vector<double>& other) {
    for (size_t k = 0; k < into.size(); ++k) into[k] = (into[k] + other[k]) * share / 2;
  };
  merge(answer.d_rows, back.d_columns);
  merge(answer.d_columns, back.d_rows);
  merge(answer.d_temperature, back.d_temperature);
  for (int k = 0; k < kStatCount; ++k) answer.stats[k] += back.stats[k];
  answer.temperature_terms = (answer.temperature_terms + back.temperature_terms) * share / 2;
  return answer;
}

// Ways to split the work: all at once, in pieces from the last to the first, and on real threads.
inline void whole(int64_t count, Parallel::Task task, void* context) { task(context, 0, count); }
inline void backwards(int64_t count, Parallel::Task task, void* context) {
  for (int64_t piece = 6; piece >= 0; --piece) {
    if (count * piece / 7 < count * (piece + 1) / 7) task(context, count * piece / 7, count * (piece + 1) / 7);
  }
}
inline void threads(int64_t count, Parallel::Task task, void* context) {
  std::vector<std::thread> pool;
  for (int64_t piece = 0; piece < 3; ++piece) {
    if (count * piece / 3 < count * (piece + 1) / 3) pool.emplace_back(task, context, count * piece / 3, count * (piece + 1) / 3);
  }
  for (std::thread& thread : pool) thread.join();
}
constexpr Parallel kPools[] = {{whole, 1}, {backwards, 7}, {threads, 3}};

template <class T, class Call>
Answer kernel_answer(const Problem& p, Call call, const Kernel<Call>& kernel, const Parallel& pool) {
  const int64_t n = p.rows.count, m = p.m(), dim = p.rows.dim;
  const bool gradients = p.call.reduction != Reduction::none;
  // What is not written is seen.
  const T unset = std::numeric_limits<T>::quiet_NaN();
  std::vector<T> row_loss(n, unset), d_rows(gradients ? n * dim : 0, unset), d_columns(gradients && !p.call.self ? m * dim : 0, unset);
  Answer answer;
  answer.d_temperature.assign(p.call.temperature == nullptr ? 0 : p.call.temperature_per_row ? n : 1, gradients ? kNaN : 0.0);
  call.pairs = p.call;
  call.pairs.row_loss = row_loss.data();
  call.pairs.d_rows = gradients ? d_rows.data() : nullptr;
  call.pairs.d_columns = gradients && !p.call.self ? d_columns.data() : nullptr;
  call.pairs.d_temperature = gradients && p.call.temperature != nullptr ? answer.d_temperature.data() : nullptr;
  call.pairs.stats = p.statistics ? answer.stats : nullptr;
  call.pairs.loss = &answer.loss;
  (sizeof(T) == 8 ? kernel.f64 : kernel.f32)(call, pool);
  answer.row_loss.assign(row_loss.begin(), row_loss.end());
  answer.d_rows.assign(d_rows.begin(), d_rows.end());
  answer.d_columns.assign(d_columns.begin(), d_columns.end());
  return answer;
}

inline int failures = 0;

inline void check(bool holds, const std::string& what, const std::string& where) {
  if (holds) return;
  ++failures;
  std::printf("%s: %s\n", where.c_str(), what.c_str());
}

// Largest difference relative to the largest value (or to `magnitude`, where that is larger); sizes must agree.
inline double error(const std::vector<double>& ours, const std::vector<double>& exact, double magnitude = 0) {
  if (ours.size() != exact.size()) return kInfinity;
  double difference = 0;
  magnitude = std::max(magnitude, 1e-30);
  for (size_t i = 0; i < ours.size(); ++i) {
    difference = std::max(difference, std::isfinite(ours[i]) ? std::fabs(ours[i] - exact[i]) : kInfinity);
    magnitude = std::max(magnitude, std::fabs(exact[i]));
  }
  return difference / magnitude;
}

// The kernel of every level, computing in T, against `exact`.
template <class T, class Call>
void compare(const Problem& p, const Call& call, const Kernel<Call> Kernels::* kernel, const Answer& exact, const std::string& problem) {
  // Sums of at most some thousand products, exponents of at most 50: some hundred roundings.
  const double tolerance = sizeof(T) == 8 ? 1e-11 : 3e-5;
  for (int level = 0; level < isa_count(); ++level) {
    set_isa(isa_level(level));
    const std::string where = std::string(isa_name()) + (sizeof(T) == 8 ? " in f64 " : " in f32 ") + problem;
    const Answer ours = kernel_answer<T>(p, call, kernels().*kernel, kPools[0]);
    check(error({ours.loss}, {exact.loss}) < tolerance, "loss", where);
    check(error(ours.row_loss, exact.row_loss) < tolerance, "losses of the rows", where);
    if (p.call.reduction != Reduction::none) {
      check(error(ours.d_rows, exact.d_rows) < tolerance, "gradient of the rows", where);
      check(error(ours.d_columns, exact.d_columns) < tolerance, "gradient of the columns", where);
      check(error(ours.d_temperature, exact.d_temperature, exact.temperature_terms) < tolerance, "gradient of the temperature", where);
    }
    for (int k = 0; k < kTiles && p.statistics; ++k) {  // then tiles, which are no matter of the loss
      const bool sum = k == kPositiveSimilaritySum || k == kNegativeSimilaritySum;
      const double pairs = exact.stats[kPositives] + exact.stats[kNegatives] + 1;
      check(sum ? std::fabs(ours.stats[k] - exact.stats[k]) < tolerance * 30 * pairs : ours.stats[k] == exact.stats[k],
            "statistic " + std::to_string(k), where);
    }
    for (const Parallel& pool : kPools) {
      const Answer again = kernel_answer<T>(p, call, kernels().*kernel, pool);
      check(again.loss == ours.loss && again.row_loss == ours.row_loss && again.d_rows == ours.d_rows &&
                again.d_columns == ours.d_columns && (p.call.reduction == Reduction::none || again.d_temperature == ours.d_temperature) &&
                std::equal(again.stats, again.stats + kStatCount, ours.stats),
            "bits depend on how the work is split", where);
    }
  }
}
// In the compute type of its embeddings.
template <class Call>
void compare(const Problem& p, const Call& call, const Kernel<Call> Kernels::* kernel, const Answer& exact, const std::string& problem) {
  if (p.rows.dtype == DType::f64) {
    compare<double>(p, call, kernel, exact, problem);
  } else {
    compare<float>(p, call, kernel, exact, problem);
  }
}

}  // namespace pairloom::tests
