// Weights, depths and scores of the contract (docs/numerics.md) for several vectors of logits.
#pragma once

#include "samplers/vectors.hpp"

namespace aleator::ALEATOR_ISA {

// Registers that go through the arithmetic side by side: one alone would wait for each result.
constexpr int abreast = 4;
struct Side {
  Floats of[abreast];
};

template <typename F>
static inline Side each(F f) {
  Side out;
#pragma GCC unroll 4
  for (int j = 0; j < abreast; ++j) out.of[j] = f(j);
  return out;
}

static inline Side load_side(const float* x) {
  return each([=](int j) { return load(x + j * lanes); });
}

// t of the contract: bits of weight, negative, from -100 to 0.  A masked logit has d = -inf, and
// -inf * 0 is NaN when the temperature is so large that the scale is 0: both clamp to -100 bits,
// which weighs 0.
static inline Floats bits_of(Floats x, float zmax, float scale) {
  return larger((x - zmax) * scale, Floats{} + contract::least_bits);
}
static inline Side bits_of(const Side& x, float zmax, float scale) {
  return each([&](int j) { return bits_of(x.of[j], zmax, scale); });
}

// 2^(t + 40), whose integer part is the Q40 weight.  Each multiply and each add is rounded by
// itself (the file is compiled without contraction); scaling by a power of two and cutting off the
// fraction are exact, and so are the same as the contract's shift of the mantissa.
static inline Side power(const Side& t) {
  // Adding it rounds to an integer, ties to even.  The even 40 rides along.
  const float magic = contract::round + contract::weight_bits;
  constexpr auto& c = contract::exp2_coefficients;
  const Side r = each([&](int j) { return t.of[j] + magic; });
  const Side n = each([&](int j) { return r.of[j] - magic; });
  const Side f = each([&](int j) { return t.of[j] - n.of[j]; });
  Side p = each([&](int j) { return f.of[j] * c[5]; });
#pragma GCC unroll 4
  for (int k = 4; k > 0; --k) {
    p = each([&](int j) { return p.of[j] + c[k]; });
    p = each([&](int j) { return p.of[j] * f.of[j]; });
  }
  p = each([&](int j) { return p.of[j] + c[0]; });
  // The exponents added as integers; of r only the lowest bits count, the others are shifted out.
  return each([&](int j) {
    return reinterpret_cast<Floats>(reinterpret_cast<Ints>(p.of[j]) +
                                    (reinterpret_cast<Ints>(r.of[j]) << 23));
  });
}

// With t at most this a weight is below 2^31.
constexpr float light_bits = -9.01f;

// With t at most this the squares of 128 weights have a sum below 2^64.
constexpr float light_squares_bits = -12.0f;

// With t at most this four weights times their bits are below 2^32: 2^26 * 14 each.
constexpr float light_entropy_bits = -14.0f;

// Rounded towards 0.  Unsigned, as sums of several may need 32 bits.
static inline Words whole(Floats w) {
  return reinterpret_cast<Words>(__builtin_convertvector(w, Ints));
}

// The sum of weights below 2^31.
static inline Longs sum_light(const Side& w) {
  return widened(whole(w.of[0]) + whole(w.of[1])) + widened(whole(w.of[2]) + whole(w.of[3]));
}

// rint(-x * unit), a power of two, ties to even, for a product of at most 2^23: adding 2^23 leaves
// the integer in the mantissa.
static inline Ints round_magnitude(Floats x, float unit) {
  const Floats r = add_exact_product(x, Floats{} + unit, Floats{} - 8388608.0f);
  return reinterpret_cast<Ints>(r) & 0x7FFFFF;
}

// -t in Q16.
static inline Ints depth_of(Floats t) { return round_magnitude(t, contract::depth_unit); }

static inline Ints score_of(Ints depth, int32_t mean) {
  const Ints away = depth - mean;
  return away < 0 ? -away : away;
}

}  // namespace aleator::ALEATOR_ISA
