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

// What row i counts in the divisor of a mean, before its weight: its terms, or those above 0. A row of one loss is one term.
template <class T>
double terms_of_row(const PairLossCall& call, int64_t i) {
  const int64_t* terms = call.reduction == Reduction::mean ? call.row_terms : call.row_active;
  if (terms != nullptr) return static_cast<double>(terms[i]);
  return call.reduction == Reduction::mean || !(static_cast<const T*>(call.row_loss)[i] == T{0}) ? 1.0 : 0.0;
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
    divisor += w * terms_of_row<T>(call, i);
  }
  const bool is_mean = call.reduction == Reduction::mean || call.reduction == Reduction::mean_nonzero;
  if (!is_mean) divisor = 1;
  if (call.reduction == Reduction::none && call.weights != nullptr) {
    for (int64_t i = 0; i < n; ++i) loss[i] *= static_cast<T>(call.weights[i]);
  }
  const double inverse = divisor > 0 ? 1.0 / divisor : 0.0;
  *call.loss = divisor > 0 ? total * inverse : 0.0;
  // d (sum w l / sum w n) / dw_i = (l_i - mean n_i) / sum w n
  for (int64_t i = 0; i < n && call.d_weights != nullptr; ++i) {
    const bool ignored = ignored_label(call, call.row_labels, i);
    const double beside_mean = static_cast<double>(loss[i]) - (is_mean ? *call.loss * terms_of_row<T>(call, i) : 0.0);
    static_cast<T*>(call.d_weights)[i] = ignored ? T{0} : static_cast<T>(beside_mean * inverse);
  }
  return inverse;
}

}  // namespace pairloom::PAIRLOOM_ISA
