// The order of a row's tokens: value descending, then token id ascending.  Contract:
// docs/numerics.md.
#pragma once

#include <cstdint>

namespace aleator {

// Floats as integers in the same order.  The argument is never -0 nor NaN.
inline uint32_t ordered(float z) {
  uint32_t b;
  __builtin_memcpy(&b, &z, 4);
  return b & 0x80000000u ? ~b : b | 0x80000000u;
}

inline float from_ordered(uint32_t b) {
  b = b & 0x80000000u ? b & 0x7FFFFFFFu : ~b;
  float z;
  __builtin_memcpy(&z, &b, 4);
  return z;
}

// A token's place in the order: larger is earlier.
inline uint64_t order_key(float z, int32_t id) {
  return static_cast<uint64_t>(ordered(z)) << 32 | static_cast<uint32_t>(~id);
}

}  // namespace aleator
