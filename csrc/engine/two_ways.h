// A loss of two batches that is the mean of a row rule taken both ways, rows against columns and columns against rows, as two runs:
// for calls that engine/pair_sweep.h does not fit.
#pragma once

#include <utility>

#include "engine/pair_loss.h"

namespace pairloom::PAIRLOOM_ISA {

template <class T, class Rule, class Products>
void run_two_ways(const PairLossCall& call, const Rule& rule, const Parallel& pool) {
  const int64_t n = call.rows.rows, dim = call.rows.dim;
  const int64_t temperatures = call.d_temperature == nullptr ? 0 : call.temperature_per_row ? n : 1;
  Buffer<T> row_loss(n);
  Buffer<T> d_rows(call.d_rows != nullptr ? n * dim : 0);
  Buffer<T> d_columns(call.d_columns != nullptr ? n * dim : 0);
  Buffer<double> d_temperature(temperatures);
  double loss;
  double stats[kStatCount];
  // Both as weighted sums; the reduction acts on the mean of a row's two losses.
  PairLossCall there = call;
  there.reduction = Reduction::sum;
  PairLossCall back = there;
  std::swap(back.rows, back.columns);
  back.row_loss = row_loss.get();
  back.d_rows = call.d_columns != nullptr ? d_columns.get() : nullptr;
  back.d_columns = call.d_rows != nullptr ? d_rows.get() : nullptr;
  if (call.d_temperature != nullptr) back.d_temperature = d_temperature.get();
  if (call.stats != nullptr) back.stats = stats;
  back.loss = &loss;
  PairLoss<T, Rule, Products>(there, rule, pool).run();
  PairLoss<T, Rule, Products>(back, rule, pool).run();

  const auto sum_times = [](double factor, auto* into, const auto* other, int64_t count) {
    for (int64_t k = 0; k < count; ++k) {
      using Value = std::remove_reference_t<decltype(*into)>;
      into[k] = (into[k] + other[k]) * static_cast<Value>(factor);
    }
  };
  sum_times(0.5, static_cast<T*>(call.row_loss), row_loss.get(), n);
  const double scale = reduce_losses<T>(call) / 2;
  sum_times(scale, call.d_temperature, d_temperature.get(), temperatures);
  if (call.d_rows != nullptr) sum_times(scale, static_cast<T*>(call.d_rows), d_rows.get(), n * dim);
  if (call.d_columns != nullptr) sum_times(scale, static_cast<T*>(call.d_columns), d_columns.get(), n * dim);
  for (int k = 0; k < kStatCount && call.stats != nullptr; ++k) call.stats[k] += stats[k];
}

}  // namespace pairloom::PAIRLOOM_ISA
