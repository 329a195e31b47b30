// Every instruction-set level of every kernel equals a naive driver in double precision (naive.h), over shapes at and beside tile
// edges, with strided inputs of every dtype, all similarities and reductions, labels, weights and temperatures; and gives the same bits
// however the work is split over threads. Batches that are large enough for other ways through the pairs: sweeps_against_naive.cpp.
#include "naive.h"

namespace {

using namespace pairloom;
using namespace pairloom::tests;

struct Shape {
  int64_t n, m, dim;
};
constexpr Shape kShapes[] = {{0, 0, 3},    {0, 5, 3},    {1, 1, 1},    {1, 9, 2},     {2, 5, 3},     {6, 7, 16},     {7, 16, 17},
                             {17, 31, 33}, {33, 64, 65}, {63, 65, 15}, {64, 127, 32}, {127, 253, 5}, {130, 513, 31}, {257, 300, 7}};

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

std::string name(const Shape& shape, DType dtype, const std::string& what) {
  return std::string(name_of(dtype)) + " " + std::to_string(shape.n) + "x" + std::to_string(shape.m) + "x" + std::to_string(shape.dim) +
         " " + what;
}

void check_losses(DType dtype) {
  std::mt19937 random(7);
  for (const Shape& shape : kShapes) {
    const bool narrow = dtype == DType::bf16 || dtype == DType::f16;
    for (int variant = 0; variant < 24; variant += shape.n > 60 ? 5 : narrow ? 3 : 1) {
      const std::string where = name(shape, dtype, "variant " + std::to_string(variant));
      {
        Problem p(shape.n, shape.m, shape.dim, dtype, variant, false, random);
        p.call.target_is_row = true;
        p.call.same_label_is_positive = variant % 3 == 1;
        p.use_temperature(variant % 4 == 3);
        if (variant % 5 != 0) p.use_labels();
        if (variant % 4 == 2) p.spoil_ignored();
        const InfoNceCall call{};
        compare(p, call, &Kernels::info_nce, naive_answer(p, naive::InfoNce<double>(call)), where + " info_nce");
      }
      {
        Problem p(shape.n, shape.m, shape.dim, dtype, variant, variant % 2 == 0, random);
        p.call.same_label_is_positive = true;
        p.use_labels();
        if (variant % 4 == 1) p.use_sets(1 + variant % 3, random);
        if (variant % 4 >= 2) p.spoil_ignored();
        if (variant % 5 == 2) p.call.similarity = Similarity::euclidean;
        if (variant % 5 == 4) p.call.similarity = Similarity::squared_euclidean;
        // Gentle enough for the losses of all rows to be numbers in float32.
        const double steep = p.call.similarity == Similarity::cosine ? 20.0 : is_distance(p.call.similarity) ? 0.05 : 2.0;
        const MultiSimilarityCall call{
            .pairs = {}, .alpha = std::min(steep, 2.0), .beta = steep, .base = 0.5, .epsilon = 0.1, .mining = variant % 3 == 0};
        compare(p, call, &Kernels::multi_similarity, naive_answer(p, naive::MultiSimilarity<double>(call)), where + " multi_similarity");

        p.use_temperature(variant % 4 == 3);
        const SupConCall contrastive{.pairs = {}, .inside = variant % 3 == 0};
        compare(p, contrastive, &Kernels::sup_con, naive_answer(p, naive::SupCon<double>(contrastive)), where + " sup_con");
      }
    }
  }
}

template <class T>
void check_scores_of_level(const Rows& a, const Rows& b, Similarity similarity, const std::vector<double>& exact,
                           const std::string& where) {
  const int64_t n = a.count, m = b.count;
  std::vector<T> matrix(n * m);
  const PairwiseCall call{a.matrix(), b.matrix(), similarity, matrix.data()};
  (sizeof(T) == 8 ? kernels().pairwise_similarity.f64 : kernels().pairwise_similarity.f32)(call, kPools[1]);
  check(error({matrix.begin(), matrix.end()}, exact) < (sizeof(T) == 8 ? 1e-13 : 1e-5), "similarity matrix", where);

  for (const int64_t k : {int64_t{0}, int64_t{1}, int64_t{5}, m, m + 3}) {
    for (const Parallel& pool : kPools) {
      std::vector<T> scores(n * k);
      std::vector<int64_t> indices(n * k);
      const TopkCall top{a.matrix(), b.matrix(), similarity, k, scores.data(), indices.data()};
      (sizeof(T) == 8 ? kernels().topk.f64 : kernels().topk.f32)(top, pool);
      for (int64_t i = 0; i < n; ++i) {
        // Its scores are those of the matrix, bit by bit, so the order is known exactly.
        std::vector<int64_t> order(m);
        for (int64_t j = 0; j < m; ++j) order[j] = j;
        const T* row = matrix.data() + i * m;
        std::stable_sort(order.begin(), order.end(), [&](int64_t p, int64_t q) { return row[p] > row[q]; });
        bool right = true;
        for (int64_t r = 0; r < k; ++r) {
          const bool there = r < m;
          right &= indices[i * k + r] == (there ? order[r] : -1);
          right &= scores[i * k + r] == (there ? row[order[r]] : -std::numeric_limits<T>::infinity());
        }
        check(right, "top " + std::to_string(k) + " of query " + std::to_string(i), where);
      }
    }
  }
}

void check_scores(DType dtype) {
  std::mt19937 random(8);
  for (const Shape& shape : kShapes) {
    for (const Similarity similarity : {Similarity::cosine, Similarity::dot, Similarity::euclidean, Similarity::squared_euclidean}) {
      const Rows a(shape.n, shape.dim, dtype, random), b(shape.m, shape.dim, dtype, random);
      std::vector<double> exact;
      for (int64_t i = 0; i < shape.n; ++i) {
        for (int64_t j = 0; j < shape.m; ++j) {
          double length;
          exact.push_back(similarity_of(similarity, direction(a, i, similarity, &length), direction(b, j, similarity, &length)));
        }
      }
      for (int level = 0; level < isa_count(); ++level) {
        set_isa(isa_level(level));
        const std::string where =
            std::string(isa_name()) + " " + name(shape, dtype, "similarity " + std::to_string(static_cast<int>(similarity)));
        dtype == DType::f64 ? check_scores_of_level<double>(a, b, similarity, exact, where)
                            : check_scores_of_level<float>(a, b, similarity, exact, where);
      }
    }
  }
}

}  // namespace

int main() {
  for (const DType dtype : kDTypes) check_losses(dtype);
  for (const DType dtype : {DType::f32, DType::f64}) check_scores(dtype);
  std::printf("%d levels, %d failures\n", isa_count(), failures);
  return failures == 0 ? 0 : 1;
}
