#include "layers/feed_forward.hpp"

#include "layers/exponential.hpp"

namespace aleator::ALEATOR_ISA {

void swiglu_clamped(float* gate, const float* up, int64_t n) {
  constexpr float slope = 1.702f, limit = 7.0f;
  each(gate, n, [&](vf x, int64_t i) {
    vf y = load_some(up + i, n - i);
    x = where(x > limit, splat(limit), x);
    y = where(y > limit, splat(limit), where(y < -limit, splat(-limit), y));
    return x / (1.0f + exponential(-slope * x)) * (y + 1.0f);
  });
}

}  // namespace aleator::ALEATOR_ISA
