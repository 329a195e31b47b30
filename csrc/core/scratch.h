// Large blocks of scratch memory, kept for the next call. A training step asks for the same blocks each time, and pages that the
// kernel has to clear and map anew cost a tenth of a large call.
#pragma once

#include <cstdint>

namespace pairloom {

// At least `bytes`, aligned to a huge page where it is large; throws std::bad_alloc. Contents are arbitrary.
void* acquire_scratch(uint64_t bytes);

// Gives a block back, with the size it was asked for. At most kRetainedScratch bytes are kept, the rest goes back to the system.
void release_scratch(void* block, uint64_t bytes);

constexpr uint64_t kRetainedScratch = uint64_t{64} << 20;

}  // namespace pairloom
