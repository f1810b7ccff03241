// Logarithm and exponential in base 2 as integers: what the contract uses where float functions
// would differ between machines.  Contract: docs/numerics.md, "Logarithm and exponential".
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "contract.hpp"

namespace aleator {

using u128 = unsigned __int128;
using i128 = __int128;

// log2(x) in Q32, rounded down bit by bit; x > 0.
inline int64_t log2_q32(uint64_t x) {
  const int n = 63 - std::countl_zero(x);
  uint64_t m = x << (63 - n);  // Q63, in [1, 2)
  uint64_t fraction = 0;
  for (int i = 0; i < 32; ++i) {
    const uint64_t square = uint64_t(static_cast<u128>(m) * m >> 64);  // Q62
    const bool two = square >> 63;
    fraction = fraction << 1 | two;
    m = two ? square : square << 1;
  }
  return int64_t(uint64_t(n) << 32 | fraction);
}

// floor(sqrt(x)).
inline uint64_t isqrt(u128 x) {
  u128 root = 0;
  for (int bit = 63; bit >= 0; --bit) {
    const u128 candidate = root | u128{1} << bit;
    if (candidate * candidate <= x) root = candidate;
  }
  return uint64_t(root);
}

// 2^(f / 2^32) in Q62 for f in [0, 2^32): a product of square roots of 2, one per bit of f.
inline uint64_t exp2_q62(uint32_t f) {
  static const std::array<uint64_t, 32> roots = [] {
    std::array<uint64_t, 32> r{};
    uint64_t previous = uint64_t{1} << 63;  // 2 in Q62
    for (auto& root : r) root = previous = isqrt(static_cast<u128>(previous) << 62);
    return r;
  }();
  uint64_t m = uint64_t{1} << 62;
  for (int i = 0; i < 32; ++i)
    if (f >> (31 - i) & 1) m = uint64_t(static_cast<u128>(m) * roots[i] >> 62);
  return m;
}

// The same on float64: log2 of a positive finite x through its 53-bit mantissa, to 2^-32.
inline double log2_double(double x) {
  int exponent;
  const double fraction = std::frexp(x, &exponent);
  const auto mantissa = uint64_t(std::ldexp(fraction, 53));
  return double(log2_q32(mantissa) + (int64_t{exponent} - 53) * (int64_t{1} << 32)) / 4294967296.0;
}

// 2^y for a clamped y, rounded down to Q32.
inline double exp2_double(double y) {
  y = y < -contract::exp2_limit  ? -contract::exp2_limit
      : y > contract::exp2_limit ? contract::exp2_limit
                                 : y;
  const auto q = int64_t(std::floor(y * 4294967296.0));
  const int64_t whole = q >> 32;
  return std::ldexp(double(exp2_q62(uint32_t(q))), int(whole) - 62);
}

// A non-negative float32 as an exact fraction: numerator / 2^shift, the numerator below 2^24.
struct Fraction32 {
  uint64_t numerator = 0;
  int shift = 0;
  Fraction32() = default;
  explicit Fraction32(float x) {
    int exponent = 0;
    const float fraction = std::frexp(x, &exponent);
    numerator = uint64_t(std::ldexp(fraction, 24));
    shift = 24 - exponent;
  }
  // ceil(x * total) for total < 2^60 and x <= 2^40; what does not fit is the largest 64-bit value.
  uint64_t ceil_of(uint64_t total) const {
    const u128 product = static_cast<u128>(numerator) * total;
    if (!product) return 0;
    if (shift >= 127) return 1;
    if (shift <= 0) return -shift > 40 ? ~uint64_t{0} : saturate(product << -shift);
    return saturate((product + ((u128{1} << shift) - 1)) >> shift);
  }

 private:
  static uint64_t saturate(u128 x) { return x >> 64 ? ~uint64_t{0} : uint64_t(x); }
};

}  // namespace aleator
