// Contract: docs/operator.md.  Plain loops, which the compiler vectorises for each instruction set.
#include "ops/probability.hpp"

#include <bit>
#include <cmath>
#include <limits>

#include "samplers/tiles.hpp"

namespace aleator::ALEATOR_ISA {

void unit_scan(const float* x, int64_t n_tiles, float* maxima, uint8_t* flags) {
  for (int64_t tile = 0; tile < n_tiles; ++tile, x += tile_size) {
    float best[16], least[16];
    int32_t nan[16];
    for (int j = 0; j < 16; ++j) best[j] = least[j] = 0, nan[j] = 0;
    for (int i = 0; i < tile_size; i += 16)
      for (int j = 0; j < 16; ++j) {
        const float v = x[i + j];
        best[j] = v > best[j] ? v : best[j];
        least[j] = v < least[j] ? v : least[j];
        nan[j] |= v != v;
      }
    float top = best[0], low = least[0];
    int32_t any = nan[0];
    for (int j = 1; j < 16; ++j) {
      top = best[j] > top ? best[j] : top;
      low = least[j] < low ? least[j] : low;
      any |= nan[j];
    }
    maxima[tile] = top;
    flags[tile] =
        static_cast<uint8_t>((any ? tile_has_nan : 0) | ((low < 0) | (top > 1) ? tile_outside : 0));
  }
}

namespace {

inline uint64_t unit_weight(float x) {
  const float scaled = x * 0x1p40f;  // exact
  return static_cast<uint64_t>(static_cast<int64_t>(scaled > 0 ? scaled : 0.0f));
}

}  // namespace

void unit_weigh(const float* x, int64_t n, uint64_t* weights) {
  for (int64_t i = 0; i < n; ++i) weights[i] = unit_weight(x[i]);
}

uint64_t unit_mass(const float* x) {
  uint64_t total = 0;
  for (int i = 0; i < tile_size; ++i) total += unit_weight(x[i]);
  return total;
}

void to_probabilities(const uint64_t* weights, int64_t n, uint64_t total, float* probs) {
  const double divisor = static_cast<double>(total);
  for (int64_t i = 0; i < n; ++i)
    probs[i] = static_cast<float>(static_cast<double>(static_cast<int64_t>(weights[i])) / divisor);
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
      uint32_t v;
      __builtin_memcpy(&v, q + i + j, 4);
      v &= 0x7FFFFFFFu;
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
