// Sums over mixtures at one instruction-set level.
#include "cpu/level.h"
#include "engine/mixtures.h"

namespace pairloom::PAIRLOOM_ISA {

void mixtures_f32(const MixturesCall& call, const Parallel& pool) { Mixtures<float>(call, pool).run(); }
void mixtures_f64(const MixturesCall& call, const Parallel& pool) { Mixtures<double>(call, pool).run(); }

}  // namespace pairloom::PAIRLOOM_ISA
