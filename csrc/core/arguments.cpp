#include "core/arguments.h"

#include <algorithm>

namespace pairloom {

Similarity parse_similarity(const std::string& name) {
  if (name == "cosine") return Similarity::cosine;
  if (name == "dot") return Similarity::dot;
  if (name == "euclidean") return Similarity::euclidean;
  if (name == "squared_euclidean") return Similarity::squared_euclidean;
  throw InputError("similarity is '" + name + "'; allowed are 'cosine', 'dot', 'euclidean' and 'squared_euclidean'");
}

Exclusions::Exclusions(const int64_t* indptr, int64_t indptr_count, const int64_t* indices, int64_t indices_count, int64_t queries)
    : indptr_(indptr), indices_(indices) {
  const auto number = [](int64_t n) { return std::to_string(n); };
  if (indptr_count != queries + 1) {
    throw InputError("exclude_indptr has " + number(indptr_count) + " entries for " + number(queries) +
                     " queries; expected one more than there are queries");
  }
  if (indptr[0] != 0) throw InputError("exclude_indptr begins with " + number(indptr[0]) + "; expected 0");
  for (int64_t q = 0; q < queries; ++q) {
    if (indptr[q] > indptr[q + 1]) {
      throw InputError("exclude_indptr falls from " + number(indptr[q]) + " to " + number(indptr[q + 1]) + " at query " + number(q) +
                       "; it must not fall");
    }
  }
  if (indptr[queries] != indices_count) {
    throw InputError("exclude_indptr ends with " + number(indptr[queries]) + " for " + number(indices_count) +
                     " exclude_indices; expected their number");
  }
  const auto sorted = [&](int64_t q) { return std::is_sorted(indices + indptr[q], indices + indptr[q + 1]); };
  int64_t q = 0;
  while (q < queries && sorted(q)) ++q;
  if (q == queries) return;
  sorted_.assign(indices, indices + indices_count);
  for (; q < queries; ++q) std::sort(sorted_.begin() + indptr[q], sorted_.begin() + indptr[q + 1]);
}

}  // namespace pairloom
