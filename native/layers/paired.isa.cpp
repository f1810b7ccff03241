#include "layers/paired.hpp"

#include <utility>

#include "layers/lanes.hpp"

namespace aleator::ALEATOR_ISA {

// As bfloat16, in the upper halves.
static inline vi rounded(vf x) {
  const vi bits = reinterpret<vi>(x), magnitude = bits & 0x7fffffff;
  const vi quiet = magnitude > 0x7f800000, kept = magnitude >= 0x25800000;  // NaN; 2^-52
  const vi near =
      (quiet & bits) | (~quiet & (bits + (0x7fff + (bits >> 16 & 1)))) | (quiet & 0x400000);
  return near & kept & -0x10000;
}
template <int odd, int... i>
static inline vi every_second(vi a, vi b, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(a, b, (2 * i + odd)...);
}

void pair_row(const float* x, int64_t in, float* floats, uint16_t* halves) {
  constexpr auto each = std::make_integer_sequence<int, lanes>();
  for (int64_t i = 0; i < in; i += 32) {
    float some[32];
    const float* from = x + i;
    if (in - i < 32) {
      std::memset(some, 0, sizeof some);
      std::memcpy(some, from, size_t(in - i) * 4);
      from = some;
    }
    for (int k = 0; k < 32; k += 2 * lanes) {
      const vi a = rounded(load(from + k)), b = rounded(load(from + k + lanes));
      const vi odd = every_second<1>(a, b, each), even = every_second<0>(a, b, each);
      store(floats + i + k / 2, reinterpret<vf>(odd));
      store(floats + i + 16 + k / 2, reinterpret<vf>(even));
      if (halves) {
        typedef uint32_t words __attribute__((vector_size(4 * lanes)));
        const vi both = odd | reinterpret<vi>(reinterpret<words>(even) >> 16);
        std::memcpy(halves + i + k, &both, sizeof both);
      }
    }
  }
}

}  // namespace aleator::ALEATOR_ISA
