// float16 by integers: not every compiler has the type.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace aleator {

// The float16 number that is nearest to x, ties to even, as float32; beyond 65,519 it is infinite.
inline float rounded_to_half(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7FFFFFFFu;
  if (magnitude >= 0x7F800000u) return x;  // infinite, or no number
  if (magnitude < 0x38800000u)             // below 2^-14: multiples of 2^-24, the unit of [1/2, 1)
    return std::copysign((std::fabs(x) + 0.5f) - 0.5f, x);
  const uint32_t rounded = (magnitude + 0xFFFu + (magnitude >> 13 & 1u)) & ~0x1FFFu;
  const uint32_t limited = rounded >= 0x47800000u ? 0x7F800000u : rounded;
  return std::bit_cast<float>((bits & 0x80000000u) | limited);
}

}  // namespace aleator
