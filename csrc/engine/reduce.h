// From the losses of the rows to the value of the call.
#pragma once

#include "core/labels.h"
#include "core/simd.h"
#include "core/types.h"

namespace pairloom::PAIRLOOM_ISA {

// What row i counts in sums and means.
inline double weight_of_row(const PairLossCall& call, int64_t i) {
  if (ignored_label(call, call.row_labels, i)) return 0.0;
  return call.weights != nullptr ? call.weights[i] : 1.0;
}

// The value of the call from row_loss, which "none" weighs in place. Returns what the gradients of the weighted sum are multiplied with.
template <class T>
double reduce_losses(const PairLossCall& call) {
  const int64_t n = call.rows.rows;
  T* loss = static_cast<T*>(call.row_loss);
  double total = 0;
  double divisor = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double w = weight_of_row(call, i);
    if (w == 0) continue;
    total += w * static_cast<double>(loss[i]);
    if (call.reduction == Reduction::mean || !(loss[i] == T{0})) divisor += w;
  }
  if (call.reduction == Reduction::sum || call.reduction == Reduction::none) divisor = 1;
  if (call.reduction == Reduction::none && call.weights != nullptr) {
    for (int64_t i = 0; i < n; ++i) loss[i] *= static_cast<T>(call.weights[i]);
  }
  const double inverse = divisor > 0 ? 1.0 / divisor : 0.0;
  *call.loss = divisor > 0 ? total * inverse : 0.0;
  return inverse;
}

}  // namespace pairloom::PAIRLOOM_ISA
