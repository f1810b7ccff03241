#include "layers/gelu.hpp"

#include "layers/exponential.hpp"

namespace aleator::ALEATOR_ISA {

constexpr float root = 0.79788456080286535587989211986876f, cubic = 0.044715f;  // sqrt(2 / pi)

void fill_gelu_table(uint16_t* table) {
  for (int i = 0; i < 1 << 16; i++) {
    const float x = f32_of_f16(uint16_t(i));
    table[i] = f16_of_f32(0.5f * x * (1.0f + tanh_rounded(root * x * (1.0f + cubic * x * x))));
  }
}

void soften(float* x, int64_t n, float cap) {
  each(x, n, [&](vf v, int64_t) { return hyperbolic_tangent(v / cap) * cap; });
}

void geglu(float* gate, const float* up, int64_t n) {  // (1 + tanh(z)) / 2 = 1 / (1 + e^-2z)
  each(gate, n, [&](vf x, int64_t i) {
    return x / (1.0f + exponential(-2.0f * root * x * (1.0f + cubic * x * x))) *
           load_some(up + i, n - i);
  });
}

void geglu_rounded(float* gate, const float* up, int64_t n, const uint16_t* table) {
  for (int64_t i = 0; i < n; i++) {
    const float x = gate[i];
    gate[i] = up[i] * (x <= -10.0f ? 0.0f : x >= 10.0f ? x : f32_of_f16(table[f16_of_f32(x)]));
  }
}

}  // namespace aleator::ALEATOR_ISA
