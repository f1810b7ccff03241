#include "simd/dispatch.hpp"

#include <cstdlib>
#include <cstring>

namespace aleator {

static Isa detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  Isa best = Isa::base;
  // Clang before 17 does not know the "x86-64-vN" names, so the features are asked for one by one.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c"))
    best = Isa::v3;
  if (best == Isa::v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
    best = Isa::v4;
  if (const char* asked = std::getenv("ALEATOR_ISA")) {
    if (!std::strcmp(asked, "base")) return Isa::base;
    if (!std::strcmp(asked, "v3") && best == Isa::v4) return Isa::v3;
  }
  return best;
#else
  return Isa::base;
#endif
}

Isa isa() {
  static const Isa chosen = detect();
  return chosen;
}

}  // namespace aleator
