// Rules of floating-point arithmetic while native code computes: to nearest, subnormal numbers
// kept.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace aleator {

// Sets them for this thread, and puts back at its end what the caller had: other libraries flush
// subnormal numbers to zero (torch.set_flush_denormal), which would make bits depend on the thread.
class FloatRules {
 public:
  FloatRules() : before_(read()) {
    if (before_ != required(before_)) write(required(before_));
  }
  ~FloatRules() {
    if (before_ != required(before_)) write(before_);
  }
  FloatRules(const FloatRules&) = delete;
  FloatRules& operator=(const FloatRules&) = delete;

 private:
#if defined(__x86_64__)
  using Word = uint32_t;
  static Word required(Word word) { return word & ~0xe040u; }  // FTZ, rounding, DAZ
  static Word read() { return _mm_getcsr(); }
  static void write(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
  using Word = uint64_t;
  static Word required(Word word) { return word & ~(uint64_t{7} << 22); }  // FZ, rounding
  static Word read() {
    Word word;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void write(Word word) { asm volatile("msr fpcr, %0" : : "r"(word)); }
#else
  using Word = int;
  static Word required(Word word) { return word; }
  static Word read() { return 0; }
  static void write(Word) {}
#endif
  const Word before_;
};

}  // namespace aleator
