#include "layers/gates.hpp"

#include "layers/elementary.hpp"
#include "layers/exponential.hpp"

namespace aleator::ALEATOR_ISA {

void swiglu(float* gate, const float* up, int64_t n) {
  each(gate, n, [&](vf x, auto of) { return silu(x) * of(up); });
}

void square_glu(float* gate, const float* up, int64_t n) {
  each(gate, n, [&](vf x, auto of) {
    const vf above = positive_part(x);
    return above * above * of(up);
  });
}

void swiglu_clamped(float* gate, const float* up, int64_t n) {
  constexpr float slope = 1.702f, limit = 7.0f;
  each(gate, n, [&](vf x, auto of) {
    vf y = of(up);
    x = where(x > limit, splat(limit), x);
    y = where(y > limit, splat(limit), where(y < -limit, splat(-limit), y));
    return x / (1.0f + exponential(-slope * x)) * (y + 1.0f);
  });
}

constexpr float root = 0.79788456080286535587989211986876f, cubic = 0.044715f;  // sqrt(2 / pi)

void fill_gelu_table(uint16_t* table) {
  for (int i = 0; i < 1 << 16; i++) {
    const float x = f32_of_f16(uint16_t(i));
    const float tanh = float(tanh_double(root * x * (1.0f + cubic * x * x)));
    table[i] = f16_of_f32(0.5f * x * (1.0f + tanh));
  }
}

void soften(float* x, int64_t n, float cap) {
  each(x, n, [&](vf v, auto) { return hyperbolic_tangent(v / cap) * cap; });
}

void geglu(float* gate, const float* up, int64_t n) {  // (1 + tanh(z)) / 2 = 1 / (1 + e^-2z)
  each(gate, n, [&](vf x, auto of) {
    return x / (1.0f + exponential(-2.0f * root * x * (1.0f + cubic * x * x))) * of(up);
  });
}

// x / 2 (1 + erf(x / sqrt(2))).  1 - erf(a) is Abramowitz and Stegun's formula 7.1.26, off by less
// than 1.5e-7.
void geglu_exact(float* gate, const float* up, int64_t n) {
  each(gate, n, [&](vf x, auto of) {
    const vf a = absolute(x) * 0.70710678118654752440f;
    const vf t = 1.0f / fused(splat(0.3275911f), a, splat(1.0f));
    const vf p = polynomial(
        t, {1.061405429f, -1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f, 0.0f});
    const vf above =
        0.5f * p * exponential(-(a * a));  // the part of a normal distribution beyond a
    return x * where(x > 0.0f, 1.0f - above, above) * of(up);
  });
}

void geglu_rounded(float* gate, const float* up, int64_t n) {
  const uint16_t* table = gelu_table();
  for (int64_t i = 0; i < n; i++) {
    const float x = gate[i];
    gate[i] = up[i] * (x <= -10.0f ? 0.0f : x >= 10.0f ? x : f32_of_f16(table[f16_of_f32(x)]));
  }
}

}  // namespace aleator::ALEATOR_ISA
