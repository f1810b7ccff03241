// e^x and what is made of it, on vectors: equal bits on every instruction set, in any lane.
// Included by *.isa.cpp files only.
#pragma once

#include <initializer_list>

#include "layers/lanes16.hpp"

namespace aleator::ALEATOR_ISA {

static inline vf where(vi condition, vf yes, vf no) {
  return reinterpret<vf>((reinterpret<vi>(yes) & condition) | (reinterpret<vi>(no) & ~condition));
}
static inline vf absolute(vf x) { return reinterpret<vf>(reinterpret<vi>(x) & INT32_MAX); }
// c[0] x^(n - 1) + ... + c[n - 1], by Horner's rule.
static inline vf polynomial(vf x, std::initializer_list<float> c) {
  vf p = splat(*c.begin());
  for (const float* i = c.begin() + 1; i != c.end(); i++) p = fused(p, x, splat(*i));
  return p;
}

// e^x within 2 units in the last place for x in [-87, 88]; 0 below, e^88 above.  With x = n ln 2 +
// r, |r| <= ln(2) / 2: Taylor's polynomial of degree 7 is off by less than 6e-9 there.
// Of several vectors step by step, so that the processor need not look far ahead for what to do
// while it waits for a step.
// With `negative` no x is above 0.
template <bool negative = false, int n>
[[gnu::always_inline]] static inline void exponentials(vf (&x)[n]) {
  vi zero[n];
  vf shifted[n], r[n], p[n];
#pragma GCC unroll 8
  for (int k = 0; k < n; k++) {
    zero[k] = x[k] < -87.0f;
    if (!negative) x[k] = where(x[k] > 88.0f, splat(88.0f), x[k]);
    // The integer nearest to x / ln 2 in the low bits.
    shifted[k] = fused(x[k], splat(1.44269504f), splat(0x1.8p23f));
  }
#pragma GCC unroll 8
  for (int k = 0; k < n; k++) {  // ln 2 in two parts
    const vf whole = shifted[k] - 0x1.8p23f;
    r[k] = fused(whole, splat(0x1.bd0106p-13f), fused(whole, splat(-0x1.63p-1f), x[k]));
    p[k] = splat(1.0f / 5040);
  }
#pragma GCC unroll 8
  for (float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
#pragma GCC unroll 8
    for (int k = 0; k < n; k++) p[k] = fused(p[k], r[k], splat(c));
#pragma GCC unroll 8
  for (int k = 0; k < n; k++) {
    const vi power = (reinterpret<vi>(shifted[k]) + 127) << 23;
    x[k] = reinterpret<vf>(reinterpret<vi>(p[k] * reinterpret<vf>(power)) & ~zero[k]);
  }
}
static inline vf exponential(vf x) {
  vf one[1] = {x};
  exponentials(one);
  return one[0];
}

static inline vf silu(vf x) { return x / (1.0f + exponential(-x)); }

static inline vf positive_part(vf x) { return reinterpret<vf>(reinterpret<vi>(x) & (x > 0.0f)); }

// log(1 + e^x) = max(x, 0) + log(1 + y), y = e^-|x|.  With s = y / (2 + y) <= 1/3 that logarithm is
// 2 (s + s^3/3 + s^5/5 + ...), here up to s^17: off by less than 3e-10 of it.
static inline vf softplus(vf x) {
  const vf above = positive_part(x), y = exponential(x - 2.0f * above), s = y / (2.0f + y);
  const vf p = polynomial(s * s, {1.0f / 17, 1.0f / 15, 1.0f / 13, 1.0f / 11, 1.0f / 9, 1.0f / 7,
                                  1.0f / 5, 1.0f / 3, 1.0f});
  return fused(2.0f * s, p, above);
}

// tanh x: below 0.625 x + x^3 P(x^2), P fitted to it; above 1 - 2 / (e^2x + 1).
static inline vf hyperbolic_tangent(vf x) {
  const vi sign = reinterpret<vi>(x) & INT32_MIN;
  const vf a = absolute(x), a2 = a * a;
  const vf p = polynomial(
      a2, {-0x1.71ba5p-8f, 0x1.514478p-6f, -0x1.b81bd4p-5f, 0x1.110640p-3f, -0x1.55553p-2f});
  const vf near = fused(a2 * a, p, a), far = 1.0f - 2.0f / (exponential(2.0f * a) + 1.0f);
  return reinterpret<vf>(reinterpret<vi>(where(a < 0.625f, near, far)) | sign);
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

// p[i] = f(p[i]) for n elements; f's second argument gives the same elements of another row.
template <class F>
static inline void each(float* p, int64_t n, F&& f) {
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    store(p + i, f(load(p + i), [&](const float* row) { return load(row + i); }));
  if (i < n)
    store_some(
        p + i,
        f(load_some(p + i, n - i), [&](const float* row) { return load_some(row + i, n - i); }),
        n - i);
}

}  // namespace aleator::ALEATOR_ISA
