// e^x and what is made of it, on vectors.  Included by *.isa.cpp files only.
#pragma once

#include <initializer_list>

#include "layers/lanes.hpp"

namespace aleator::ALEATOR_ISA {

// e^x within 2 units in the last place for x in [-87, 88]; 0 below, e^88 above.  With x = n ln 2 +
// r, |r| <= ln(2) / 2: Taylor's polynomial of degree 7 is off by less than 6e-9 there.
static inline vf exponential(vf x) {
  const vi zero = x < -87.0f;
  const vi high = x > 88.0f;
  x = reinterpret<vf>((reinterpret<vi>(x) & ~high) | (reinterpret<vi>(splat(88.0f)) & high));
  const vf shifted =
      x * 1.44269504f + 0x1.8p23f;  // the integer nearest to x / ln 2 in the low bits
  const vf n = shifted - 0x1.8p23f;
  const vf r =
      (x - n * 0x1.63p-1f) + n * 0x1.bd0106p-13f;  // ln 2 in two parts, the first with 9 bits
  vf p = splat(1.0f / 5040);
  for (float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = p * r + c;
  const vi power = (reinterpret<vi>(shifted) + 127) << 23;
  return reinterpret<vf>(reinterpret<vi>(p * reinterpret<vf>(power)) & ~zero);
}

static inline vf silu(vf x) { return x / (1.0f + exponential(-x)); }

static inline vf positive_part(vf x) { return reinterpret<vf>(reinterpret<vi>(x) & (x > 0.0f)); }

// log(1 + e^x) = max(x, 0) + log(1 + y), y = e^-|x|.  With s = y / (2 + y) <= 1/3 that logarithm is
// 2 (s + s^3/3 + s^5/5 + ...), here up to s^17: off by less than 3e-10 of it.
static inline vf softplus(vf x) {
  const vf y = exponential(x - 2.0f * positive_part(x)), s = y / (2.0f + y), s2 = s * s;
  vf p = splat(1.0f / 17);
  for (float c : {1.0f / 15, 1.0f / 13, 1.0f / 11, 1.0f / 9, 1.0f / 7, 1.0f / 5, 1.0f / 3, 1.0f})
    p = p * s2 + c;
  return positive_part(x) + 2.0f * s * p;
}

// The first n lanes of p, 0 in the others.
static inline vf load_some(const float* p, int64_t n) {
  if (n >= lanes) return load(p);
  float part[lanes] = {};
  std::memcpy(part, p, size_t(n) * 4);
  return load(part);
}
static inline void store_some(float* p, vf v, int64_t n) {
  if (n >= lanes) return store(p, v);
  float part[lanes];
  store(part, v);
  std::memcpy(p, part, size_t(n) * 4);
}

// p[i] = f(p[i]) for n elements.
template <class F>
static inline void each(float* p, int64_t n, F&& f) {
  for (int64_t i = 0; i < n; i += lanes) store_some(p + i, f(load_some(p + i, n - i), i), n - i);
}

}  // namespace aleator::ALEATOR_ISA
