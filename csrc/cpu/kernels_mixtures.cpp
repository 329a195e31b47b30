// Mixtures of pairs of rows, and sums over mixtures that nobody forms, at one instruction-set level.
#include "cpu/level.h"
#include "engine/mix.h"
#include "engine/mixtures.h"

namespace pairloom::PAIRLOOM_ISA {

void mixtures_f32(const MixturesCall& call, const Parallel& pool) { Mixtures<float>(call, pool).run(); }
void mixtures_f64(const MixturesCall& call, const Parallel& pool) { Mixtures<double>(call, pool).run(); }
void mix_f32(const MixCall& call, const Parallel& pool) { Mix<float>(call).run(pool); }
void mix_f64(const MixCall& call, const Parallel& pool) { Mix<double>(call).run(pool); }
void mix_gradients_f32(const MixGradientsCall& call, const Parallel& pool) { Mix<float>(call.mix).gradients(call, pool); }
void mix_gradients_f64(const MixGradientsCall& call, const Parallel& pool) { Mix<double>(call.mix).gradients(call, pool); }

}  // namespace pairloom::PAIRLOOM_ISA
