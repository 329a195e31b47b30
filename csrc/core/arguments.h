// What the doors check and read alike: words, sizes of codes, lists of ids.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "core/types.h"

namespace pairloom {

// Bad input, in one sentence. Doors turn it into what their callers know as such.
struct InputError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

__attribute__((visibility("default"))) Similarity parse_similarity(const std::string& name);

// Codes of a row, in whole cache lines.
constexpr int64_t code_stride(int64_t dim, bool int8) {
  const int64_t codes = int8 ? 64 : 32;
  return (dim + codes - 1) / codes * codes;
}

// What each query excludes, in rising order: in a copy, if what was given is not.
class __attribute__((visibility("default"))) Exclusions {
 public:
  Exclusions() = default;
  Exclusions(const int64_t* indptr, int64_t indptr_count, const int64_t* indices, int64_t indices_count, int64_t queries);

  const int64_t* indptr() const { return indptr_; }
  const int64_t* indices() const { return sorted_.empty() ? indices_ : sorted_.data(); }

 private:
  const int64_t* indptr_ = nullptr;
  const int64_t* indices_ = nullptr;
  std::vector<int64_t> sorted_;
};

}  // namespace pairloom
