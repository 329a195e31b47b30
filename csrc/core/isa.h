// Which instruction-set level the kernels run on: chosen once per process from what the processor has, capped by the environment
// variable PAIRLOOM_MAX_ISA, changed by set_isa() (tests run every level).
#pragma once

#include <cstdint>

#define PAIRLOOM_API __attribute__((visibility("default")))

namespace pairloom {

PAIRLOOM_API int isa_count();                   // levels that are compiled in and that this processor runs, weakest first
PAIRLOOM_API const char* isa_level(int index);  // name of one of them
PAIRLOOM_API const char* isa_name();            // the level in use
PAIRLOOM_API bool set_isa(const char* name);    // false when `name` is not one of the available levels
PAIRLOOM_API double fma_rate(double seconds);   // GFLOP/s (float32) of one thread that only multiplies and adds registers

// Seconds of one thread for the float32 products of n rows with m columns, blocks of which are thrown away.
PAIRLOOM_API double product_seconds(int64_t n, int64_t m, int64_t dim);

}  // namespace pairloom
