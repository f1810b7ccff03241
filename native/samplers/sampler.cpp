#include "samplers/sampler.hpp"

#include <cmath>

namespace aleator {

void bits_q16(const std::vector<float>& z, const Candidates& candidates,
              std::vector<int64_t>& bits) {
  const float top = candidates.top(), scale = candidates.scale();
  bits.resize(z.size());
  for (size_t i = 0; i < z.size(); ++i) {
    const float t = (z[i] - top) * scale;
    bits[i] = static_cast<int64_t>(std::rint((t >= -100.0f ? t : -100.0f) * 65536.0f));
  }
}

int64_t mean_q16(const std::vector<uint64_t>& weights, const std::vector<int64_t>& bits) {
  int64_t sum = 0,
          total = 0;  // at most 2^20 candidates of 2^20 and -100 * 2^16 each: 2^63 is not reached
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto w = static_cast<int64_t>(weights[i] >> 20);
    sum += w * bits[i];
    total += w;
  }
  // The most likely candidate counts 2^20, so total is not 0.  Rounded down: bits are negative.
  return -((-sum + total - 1) / total);
}

}  // namespace aleator
