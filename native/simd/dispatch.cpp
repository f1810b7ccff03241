#include "simd/dispatch.hpp"

#include <cstdlib>
#include <cstring>

#include "layers/block_linear.hpp"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

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
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") &&
      isa_v4::round_row)  // compiled
    best = Isa::v4;
  if (const char* asked = std::getenv("ALEATOR_ISA")) {
    if (!std::strcmp(asked, "base")) return Isa::base;
    if (!std::strcmp(asked, "v3") && best == Isa::v4) return Isa::v3;
  }
  return best;
#elif defined(__aarch64__)
  const char* asked = std::getenv("ALEATOR_ISA");
  if (asked && !std::strcmp(asked, "base")) return Isa::base;
#if defined(__APPLE__)
  return Isa::dotprod;  // all of its processors have it
#elif defined(__linux__)
  return getauxval(AT_HWCAP) & HWCAP_ASIMDDP ? Isa::dotprod : Isa::base;
#else
  return Isa::base;
#endif
#else
  return Isa::base;
#endif
}

Isa isa() {
  static const Isa chosen = detect();
  return chosen;
}

}  // namespace aleator
