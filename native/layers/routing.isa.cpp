#include "layers/routing.hpp"

#include <cmath>

#include "layers/exponential.hpp"

namespace aleator::ALEATOR_ISA {

static void softmax(float* x, int64_t n) {
  float highest = x[0];
  for (int64_t i = 1; i < n; i++) highest = x[i] > highest ? x[i] : highest;
  each(x, n, [&](vf v, auto) { return exponential(v - highest); });
  const float factor = 1.0f / total16(x, n);
  for (int64_t i = 0; i < n; i++) x[i] *= factor;
}

static void sigmoid(float* x, int64_t n) {
  each(x, n, [](vf v, auto) { return 1.0f / (1.0f + exponential(-v)); });
}

// Takes the largest key, of several the first, out of the keys.  NaN is taken already.
static int64_t take_best(float* keys, int64_t n) {
  int64_t best = -1;
  for (int64_t i = 0; i < n; i++)
    if (keys[i] == keys[i] && (best < 0 || keys[i] > keys[best])) best = i;
  keys[best] = NAN;
  return best;
}

// Takes all experts out but those of the groups whose best, or two best, have the largest sums.
static void keep_groups(const Routing& r, float* keys) {
  const int64_t size = r.n_experts / r.n_groups;
  float* sums = keys + r.n_experts;
  for (int64_t g = 0; g < r.n_groups; g++) {
    float first = -INFINITY, second = -INFINITY;
    for (int64_t i = g * size; i < (g + 1) * size; i++) {
      if (keys[i] > first)
        second = first, first = keys[i];
      else if (keys[i] > second)
        second = keys[i];
    }
    const float sum = r.n_group_best == 1 ? first : first + second;
    sums[g] = sum == sum ? sum : -INFINITY;
  }
  for (int64_t i = 0; i < r.n_groups_used; i++) take_best(sums, r.n_groups);
  for (int64_t g = 0; g < r.n_groups; g++)
    if (sums[g] == sums[g])
      for (int64_t i = g * size; i < (g + 1) * size; i++) keys[i] = NAN;
}

void route(const Routing& r, float* logits, float* keys, int32_t* chosen, float* weights) {
  if (r.scores == Scores::softmax) softmax(logits, r.n_experts);
  if (r.scores == Scores::sigmoid) sigmoid(logits, r.n_experts);
  for (int64_t i = 0; i < r.n_experts; i++) {
    const float key = r.bias ? logits[i] + r.bias[i] : logits[i];
    keys[i] = key == key ? key : -INFINITY;
  }
  if (r.n_groups > 1) keep_groups(r, keys);
  for (int64_t k = 0; k < r.n_used; k++) {
    chosen[k] = int32_t(take_best(keys, r.n_experts));
    weights[k] = logits[chosen[k]];
  }
  if (r.scores == Scores::chosen_softmax) softmax(weights, r.n_used);
  if (r.scores == Scores::chosen_sigmoid) sigmoid(weights, r.n_used);
  if (r.normalised) {
    const float sum = total16(weights, r.n_used), least = 0x1p-14f;
    for (int64_t k = 0; k < r.n_used; k++) weights[k] /= sum < least ? least : sum;
  }
  for (int64_t k = 0; k < r.n_used; k++) {
    weights[k] *= r.scale;
    if (r.scales) weights[k] *= r.scales[chosen[k]];
  }
}

float sigmoid_of(float x) {
  sigmoid(&x, 1);
  return x;
}

void add_weighted(float* y, const float* x, float weight, int64_t n) {
  each(y, n, [&](vf v, auto of) { return fused(splat(weight), of(x), v); });
}

}  // namespace aleator::ALEATOR_ISA
