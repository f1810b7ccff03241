// Contract: docs/operator.md.  Plain loops, which the compiler vectorises for each instruction set.
#include "ops/probability.hpp"

#include <bit>
#include <cmath>
#include <limits>

namespace aleator::ALEATOR_ISA {

void to_probabilities(const uint64_t* weights, int64_t n, uint64_t total, float* probs) {
  const double divisor = double(total);
  for (int64_t i = 0; i < n; ++i) probs[i] = float(double(int64_t(weights[i])) / divisor);
}

float race_scores(const float* probs, const float* q, int64_t n, float eps, float* scores) {
  float best = -1;
  int32_t nan = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float score = probs[i] / (std::fabs(q[i]) + eps);
    scores[i] = probs[i] > 0 ? score : -1.0f;
    nan |= q[i] != q[i];
    best = scores[i] > best ? scores[i] : best;
  }
  return nan ? std::numeric_limits<float>::quiet_NaN() : best;
}

float least_noise(const float* q, int64_t n) {
  // As integers, magnitudes order the same way and NaN comes after infinity.
  constexpr int lanes = 16;
  uint32_t least[lanes], most[lanes];
  for (int j = 0; j < lanes; ++j) least[j] = 0x7F800000u, most[j] = 0;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (int j = 0; j < lanes; ++j) {
      const uint32_t v = std::bit_cast<uint32_t>(q[i + j]) & 0x7FFFFFFFu;
      least[j] = v < least[j] ? v : least[j];
      most[j] = v > most[j] ? v : most[j];
    }
  for (; i < n; ++i) {
    const uint32_t v = std::bit_cast<uint32_t>(q[i]) & 0x7FFFFFFFu;
    least[0] = v < least[0] ? v : least[0];
    most[0] = v > most[0] ? v : most[0];
  }
  for (int width = lanes / 2; width; width /= 2)
    for (int j = 0; j < width; ++j) {
      least[j] = least[j + width] < least[j] ? least[j + width] : least[j];
      most[j] = most[j + width] > most[j] ? most[j + width] : most[j];
    }
  return std::bit_cast<float>(most[0] > 0x7F800000u ? most[0] : least[0]);
}

}  // namespace aleator::ALEATOR_ISA
