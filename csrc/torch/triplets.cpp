// pairloom::triplet_hinges for CPU tensors: an inner step of the triplet margin loss on a few rows of similarities.
#include "torch/tensors.h"

namespace pairloom {
namespace {

std::tuple<Tensor, Tensor, Tensor, Tensor> triplet_hinges(const Tensor& s, const Tensor& positive, const Tensor& negative, double margin,
                                                          std::optional<double> lowest, std::optional<double> highest, bool want_slope) {
  check(s.dim() == 2, "s must have two dimensions");
  const ScalarType type = s.scalar_type();
  check(type == ScalarType::Float || type == ScalarType::Double, "s must be float32 or float64");
  const int64_t rows = s.size(0), columns = s.size(1);
  const Tensor values = torch::stable::contiguous(s);
  const auto mask_of = [&](const Tensor& mask, const char* name) {
    check(mask.scalar_type() == ScalarType::Bool && mask.dim() == 2 && mask.size(0) == rows && mask.size(1) == columns, name,
          " must be bool, as large as s");
    return torch::stable::contiguous(mask);
  };
  const Tensor positives = mask_of(positive, "positive"), negatives = mask_of(negative, "negative");
  Tensor total = empty({rows}, type), active = empty({rows}, ScalarType::Long), count = empty({rows}, ScalarType::Long);
  Tensor slope = empty({want_slope ? rows : 0, columns}, type);
  const TripletHingesCall call{.s = values.const_data_ptr(),
                               .rows = rows,
                               .columns = columns,
                               .positive = static_cast<const uint8_t*>(positives.const_data_ptr()),
                               .negative = static_cast<const uint8_t*>(negatives.const_data_ptr()),
                               .margin = margin,
                               .has_lowest = lowest.has_value(),
                               .has_highest = highest.has_value(),
                               .lowest = lowest.value_or(0),
                               .highest = highest.value_or(0),
                               .total = total.mutable_data_ptr(),
                               .active = static_cast<int64_t*>(active.mutable_data_ptr()),
                               .count = static_cast<int64_t*>(count.mutable_data_ptr()),
                               .slope = want_slope ? slope.mutable_data_ptr() : nullptr};
  run(kernels().triplet_hinges, type, call);
  return {total, active, count, slope};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(pairloom, library) {
  library.def(
      "triplet_hinges(Tensor s, Tensor positive, Tensor negative, float margin, float? lowest, float? highest, bool want_slope) "
      "-> (Tensor total, Tensor active, Tensor count, Tensor slope)");
}

STABLE_TORCH_LIBRARY_IMPL(pairloom, CPU, library) { library.impl("triplet_hinges", TORCH_BOX(&triplet_hinges)); }

}  // namespace pairloom
