// Which copy of a *.isa.cpp file runs.
//
// Each copy puts its functions in `namespace aleator::ALEATOR_ISA` (isa_base, isa_v3, isa_v4 or
// isa_dotprod) and nothing outside it, so that no AVX-512 body of an inline function can leak into
// the baseline.  A header declares the copies, and names the one that callers get:
//
//     ALEATOR_KERNEL(float, row_max, (const float *x, int64_t n))
//     ... row_max_(x, n)
//
// The name with its underscore belongs to the whole program.
#pragma once

namespace aleator {

// v3 and v4 are x86-64-v3 and -v4, the latter with AVX512-VNNI; dotprod is aarch64 with sdot.
enum class Isa { base = 0, dotprod = 1, v3 = 3, v4 = 4 };

Isa isa();  // the best the processor has, or what ALEATOR_ISA asks for if that is lower; decided
            // once

bool bfloat16_products();  // whether kernels of v4 use AVX512-BF16: not with ALEATOR_ISA=v4-fma

// AMD's Zen 5 reads memory fastest as one stream, asked for ahead into the first-level cache; Zen 4
// waits there, for up to a third of a token's time, and is faster with four streams (shares_of).
extern const bool is_zen_5;

bool isa_compiled();  // false: the module was made for another processor (CMakeLists.txt,
                      // ALEATOR_HERE)

inline const char* isa_name(Isa i) {
  return i == Isa::v4 ? "v4" : i == Isa::v3 ? "v3" : i == Isa::dotprod ? "dotprod" : "base";
}

}  // namespace aleator

#define ALEATOR_DECLARE_IN(isa, declaration) \
  namespace isa {                            \
  declaration;                               \
  }
#if defined(__x86_64__)
#define ALEATOR_DECLARE(declaration)        \
  ALEATOR_DECLARE_IN(isa_base, declaration) \
  ALEATOR_DECLARE_IN(isa_v3, declaration)   \
  ALEATOR_DECLARE_IN(isa_v4, declaration)
#define ALEATOR_PICK(name)                                  \
  (::aleator::isa() == ::aleator::Isa::v4   ? &isa_v4::name \
   : ::aleator::isa() == ::aleator::Isa::v3 ? &isa_v3::name \
                                            : &isa_base::name)
#elif defined(__aarch64__)
#define ALEATOR_DECLARE(declaration)        \
  ALEATOR_DECLARE_IN(isa_base, declaration) \
  ALEATOR_DECLARE_IN(isa_dotprod, declaration)
#define ALEATOR_PICK(name) \
  (::aleator::isa() == ::aleator::Isa::dotprod ? &isa_dotprod::name : &isa_base::name)
#else
#define ALEATOR_DECLARE(declaration) ALEATOR_DECLARE_IN(isa_base, declaration)
#define ALEATOR_PICK(name) (&isa_base::name)
#endif

// Not in the copies themselves: what fills the pointer would be compiled for their processor.
#if defined(ALEATOR_ISA)
#define ALEATOR_KERNEL(type, name, arguments) ALEATOR_DECLARE(type name arguments)
#else  // weak: null in a build without the instruction set (CMakeLists.txt, ALEATOR_HERE)
#define ALEATOR_KERNEL(type, name, arguments)        \
  ALEATOR_DECLARE([[gnu::weak]] type name arguments) \
  inline const auto name##_ = ALEATOR_PICK(name);
#endif
