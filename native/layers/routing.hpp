// Which experts of a mixture take a token, and with what weights (docs/numerics.md, part 2).
#pragma once

#include <cstdint>

#include "simd/dispatch.hpp"

namespace aleator {

// How the router's logits become weights.  "chosen": experts are chosen by their logits, and the
// function is taken of those that were.
enum class Scores : int { softmax, sigmoid, chosen_softmax, chosen_sigmoid };

struct Routing {
  int64_t n_experts = 0, n_used = 0;
  int64_t n_groups = 1, n_groups_used = 1;  // experts are chosen from the best groups only
  int64_t n_group_best = 2;                 // so many of a group's best keys are its sum: 1 or 2
  Scores scores = Scores::softmax;
  bool normalised = false;        // the weights of a token's experts sum to 1
  float scale = 1;                // what weights are multiplied by
  const float* bias = nullptr;    // [n_experts] added to the scores for the choice alone, or none
  const float* scales = nullptr;  // [n_experts] that weights are multiplied by, or none
};

// One token: `logits` [n_experts] are overwritten, keys [n_experts + n_groups] is room; chosen and
// weights [n_used], best first.
ALEATOR_KERNEL(void, route,
               (const Routing& r, float* logits, float* keys, int32_t* chosen, float* weights))
// 1 / (1 + e^-x)
ALEATOR_KERNEL(float, sigmoid_of, (float x))
// y += weight * x by fused multiply-adds, n elements.
ALEATOR_KERNEL(void, add_weighted, (float* y, const float* x, float weight, int64_t n))

}  // namespace aleator
