// Picks the kernel table for this processor. The only file that knows which levels exist.
#include <atomic>
#include <cstdlib>
#include <cstring>
#if defined(__linux__) && defined(PAIRLOOM_HAVE_AMX)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "cpu/kernels.h"

namespace pairloom {

#define PAIRLOOM_DECLARE_LEVEL(level) \
  namespace level {                   \
  extern const Kernels table;         \
  }
PAIRLOOM_DECLARE_LEVEL(baseline)
#ifdef PAIRLOOM_HAVE_AVX2
PAIRLOOM_DECLARE_LEVEL(avx2)
#endif
#ifdef PAIRLOOM_HAVE_AVX512
PAIRLOOM_DECLARE_LEVEL(avx512)
#endif
#ifdef PAIRLOOM_HAVE_AMX
PAIRLOOM_DECLARE_LEVEL(amx)
#endif

namespace {

#ifdef PAIRLOOM_HAVE_AMX
// Whether the processor multiplies tiles of bfloat16 and of int8, the system saves tile registers, and lets this process use them: Linux
// wants to be asked, because a thread's saved state grows by 8 KiB.
bool may_use_matrix_unit() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  unsigned a, b, c, d;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kBfloat16 = 1u << 22, kTiles = 1u << 24, kInt8 = 1u << 25;
  if ((d & kBfloat16) == 0 || (d & kTiles) == 0 || (d & kInt8) == 0) return false;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

struct Levels {
  const Kernels* tables[4];
  int count = 0;

  Levels() {
    tables[count++] = &baseline::table;
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
#ifdef PAIRLOOM_HAVE_AVX2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) {
      tables[count++] = &avx2::table;
    }
#endif
#ifdef PAIRLOOM_HAVE_AVX512
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
      tables[count++] = &avx512::table;
#ifdef PAIRLOOM_HAVE_AMX
      if (may_use_matrix_unit()) tables[count++] = &amx::table;
#endif
    }
#endif
  }

  const Kernels* find(const char* name) const {
    for (int i = 0; i < count; ++i) {
      if (std::strcmp(tables[i]->level, name) == 0) return tables[i];
    }
    return nullptr;
  }
};

const Levels& levels() {
  static const Levels instance;
  return instance;
}

// The strongest level, or the one PAIRLOOM_MAX_ISA names. A name this processor does not have leaves the choice alone: the variable
// is a cap, and the strongest available level is then below it already.
const Kernels* initial() {
  const Levels& all = levels();
  if (const char* cap = std::getenv("PAIRLOOM_MAX_ISA")) {
    if (const Kernels* capped = all.find(cap)) return capped;
  }
  return all.tables[all.count - 1];
}

std::atomic<const Kernels*>& current() {
  static std::atomic<const Kernels*> table{initial()};
  return table;
}

}  // namespace

const Kernels& kernels() { return *current().load(std::memory_order_relaxed); }

int isa_count() { return levels().count; }

const char* isa_level(int index) { return levels().tables[index]->level; }

const char* isa_name() { return kernels().level; }

double fma_rate(double seconds) { return kernels().fma_rate(seconds); }

double product_seconds(int64_t n, int64_t m, int64_t dim) { return kernels().product_seconds(n, m, dim); }

bool set_isa(const char* name) {
  const Kernels* table = levels().find(name);
  if (table == nullptr) return false;
  current().store(table, std::memory_order_relaxed);
  return true;
}

}  // namespace pairloom
