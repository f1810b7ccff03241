#include "simd/dispatch.hpp"

#include <cstdlib>
#include <cstring>

#include "layers/block_linear.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace aleator {

static Isa detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  // Clang before 17 does not know the "x86-64-vN" names, so the features are asked for one by one.
  const bool has_v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c");
  const bool has_v4 = has_v3 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni");
  // A set that was not compiled (CMakeLists.txt, ALEATOR_HERE) has null for its functions.
  const bool base = isa_base::round_row;
  const bool v3 = has_v3 && isa_v3::round_row, v4 = has_v4 && isa_v4::round_row;
  const char* asked = std::getenv("ALEATOR_ISA");
  if (asked && base && !std::strcmp(asked, "base")) return Isa::base;
  if (asked && v3 && !std::strcmp(asked, "v3")) return Isa::v3;
  return v4 ? Isa::v4 : v3 ? Isa::v3 : Isa::base;
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

static bool detect_bfloat16() {
#if defined(__x86_64__)
  const char* asked = std::getenv("ALEATOR_ISA");
  return isa() == Isa::v4 && __builtin_cpu_supports("avx512bf16") &&
         !(asked && !std::strcmp(asked, "v4-fma"));
#else
  return false;
#endif
}

bool bfloat16_products() {
  static const bool has = detect_bfloat16();
  return has;
}

static bool detect_zen_5() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  __get_cpuid(0, &a, &b, &c, &d);
  const bool amd = c == signature_AMD_ecx;
  __get_cpuid(1, &a, &b, &c, &d);
  return amd && (a >> 8 & 15) + (a >> 20 & 255) >= 26;
#else
  return false;
#endif
}

const bool is_zen_5 = detect_zen_5();

bool isa_compiled() { return round_row_; }

}  // namespace aleator
