#include "layers/paired.hpp"

#include <cstring>

namespace aleator::ALEATOR_ISA {

// The bits of x as bfloat16, in the upper half of a word.
static inline uint32_t rounded(uint32_t x) {
  const uint32_t magnitude = x & 0x7fffffff, up = 0x7fff + (x >> 16 & 1);
  const uint32_t least = 0x25800000, infinite = 0x7f800000;  // 2^-52
  const uint32_t near = magnitude > infinite ? x | 0x400000 : x + up;
  return magnitude < least ? 0 : near & 0xffff0000;
}

void pair_row(const float* x, int64_t in, float* floats, uint16_t* halves) {
  for (int64_t i = 0; i < in; i += 32) {
    uint32_t words[32] = {}, odd[16], even[16];
    std::memcpy(words, x + i, size_t(in - i < 32 ? in - i : 32) * 4);
    for (uint32_t& word : words) word = rounded(word);
    for (int k = 0; k < 16; k++) even[k] = words[2 * k], odd[k] = words[2 * k + 1];
    std::memcpy(floats + i, odd, sizeof odd);
    std::memcpy(floats + i + 16, even, sizeof even);
    if (halves)
      for (int k = 0; k < 32; k++) halves[i + k] = uint16_t(words[k] >> 16);
  }
}

}  // namespace aleator::ALEATOR_ISA
