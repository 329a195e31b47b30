// Large batches, which take other ways through the pairs (engine/pair_sweep.h, engine/two_ways.h), equal the naive driver at every
// level: one batch beside three squares of 256 and of 384 rows and over several chunks, two batches each against the other, and long
// rows; with embeddings of every dtype, ignored rows, weights with zeros, ids and sets of labels.
#include "naive.h"

namespace {

using namespace pairloom;
using namespace pairloom::tests;

void check_one_batch(int64_t n, int64_t dim, DType dtype, int variant, bool statistics = false) {
  std::mt19937 random(static_cast<unsigned>(n + variant));
  Problem p(n, 0, dim, dtype, variant, true, random);
  p.statistics = statistics;
  p.call.same_label_is_positive = true;
  p.use_temperature(false);
  p.temperature[0] = p.call.similarity == Similarity::cosine ? 0.1 : 3.0 * static_cast<double>(dim);
  p.use_labels();
  const std::string where = std::string(name_of(dtype)) + " " + std::to_string(n) + "x" + std::to_string(dim) + " variant " +
                            std::to_string(variant) + (statistics ? " with statistics" : "");
  if (variant % 4 == 1) p.use_sets(2, random);
  if (variant % 5 == 4) p.spoil_ignored();
  const SupConCall contrastive{.pairs = {}, .inside = variant % 3 == 0};
  compare(p, contrastive, &Kernels::sup_con, naive_answer(p, naive::SupCon<double>(contrastive)), where + " sup_con");

  p.call.label_words = 0;
  p.row_labels.resize(n);
  for (int64_t i = 0; i < n; ++i) {
    const bool ignored = !std::isfinite(p.rows.at(i, i % dim)) || (i % 7 == 0 && variant % 2 == 0);
    p.row_labels[i] = ignored ? kIgnored : i * 5 % n / 2;  // mostly pairs
  }
  p.use_labels();
  const InfoNceCall call{};
  compare(p, call, &Kernels::info_nce, naive_answer(p, naive::InfoNce<double>(call)), where + " info_nce");
}

void check_two_batches(int64_t n, int64_t dim, DType dtype, int variant) {
  std::mt19937 random(static_cast<unsigned>(n + variant));
  Problem p(n, n, dim, dtype, variant, false, random);
  p.statistics = variant % 5 == 4;
  p.call.target_is_row = true;
  p.call.same_label_is_positive = variant % 3 == 2;
  p.use_temperature(variant % 4 == 3);
  p.column_labels = p.row_labels;
  if (variant % 7 != 0) p.use_labels();
  if (variant % 3 == 1) p.spoil_ignored();
  const ClipCall call{};
  const std::string where =
      std::string(name_of(dtype)) + " " + std::to_string(n) + "x" + std::to_string(dim) + " variant " + std::to_string(variant) + " clip";
  compare(p, call, &Kernels::clip, naive_clip(p), where);
}

}  // namespace

int main() {
  constexpr DType dtypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};
  int variant = 0;
  for (const int64_t n : {767, 768, 769, 1151, 1152, 1153}) {
    for (const DType dtype : dtypes) check_one_batch(n, 5, dtype, variant++);
  }
  for (const DType dtype : dtypes) check_one_batch(2311, 4, dtype, 4 + variant++ % 2);  // several chunks
  check_one_batch(800, 700, DType::bf16, 0);
  check_one_batch(800, 700, DType::f32, 0);
  check_one_batch(769, 33, DType::f16, 2, true);

  for (const int64_t n : {0, 1, 2, 31, 64, 385}) {
    for (const DType dtype : dtypes) {
      for (int i = 0; i < 8; ++i) check_two_batches(n, 1 + n % 40, dtype, i);
    }
  }
  for (const DType dtype : dtypes) check_two_batches(2100, 3, dtype, 0);
  for (const DType dtype : dtypes) check_two_batches(20, 5000, dtype, 2);
  std::printf("%d levels, %d failures\n", isa_count(), failures);
  return failures == 0 ? 0 : 1;
}
