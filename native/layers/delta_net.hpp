// A gated delta net (Yang et al. 2024, arXiv:2412.06464), for parts of a micro-batch.  A head's
// state is a matrix that maps keys to values; a token first lets it decay, and then corrects what
// the state has for the token's key.
#pragma once

#include <cstdint>

#include "layers/convolution.hpp"
#include "simd/dispatch.hpp"

namespace aleator {

struct DeltaNet {
  int64_t key_heads = 0, heads = 0;  // of queries and keys; of values
  int64_t dim = 0, dim_v = 0;        // of a key; of a value
  bool tiled = false;                // see key_head
  float eps = 0;                     // added to a key's sum of squares
  // Its channels are all queries, then all keys, then all values.
  Convolution conv;
  const float* a = nullptr;          // [heads], negative
  const float* time_bias = nullptr;  // [heads]
  const float* norm = nullptr;       // [dim_v]
  float* state_rows = nullptr;       // [rows, heads, dim_v, dim]
  int64_t keys_at() const { return key_heads * dim; }
  int64_t values_at() const { return 2 * key_heads * dim; }
  int64_t channels() const { return values_at() + heads * dim_v; }
  // The head of keys that goes with a head of values.
  int64_t key_head(int64_t head) const {
    return tiled ? head % key_heads : head / (heads / key_heads);
  }
};

// x *= scale / sqrt(x . x + eps), n elements.
ALEATOR_KERNEL(void, unit_length, (float* x, int64_t n, float eps, float scale))
// One token's heads: beta = 1 / (1 + e^-beta), decay = e^(a * softplus(decay + time_bias)).
ALEATOR_KERNEL(void, delta_rates, (const DeltaNet& d, float* beta, float* decay))
// S(t) = decay S(t - 1) + beta (v - decay S(t - 1) k) k^T;  y = S(t) q, for rows [begin, end) of
// one head's S.  x [T, channels] holds q, k and v; beta and decay [T, heads]; y [T, heads, dim_v].
ALEATOR_KERNEL(void, delta_scan,
               (const DeltaNet& d, const Runs& runs, int64_t head, int64_t begin, int64_t end,
                const float* x, const float* beta, const float* decay, float* y))
// y = rms_norm(y) * silu(gate), n elements.
ALEATOR_KERNEL(void, gated_norm,
               (float* y, const float* weight, const float* gate, int64_t n, float eps))
// y /= 1 + e^-gate, n elements.
ALEATOR_KERNEL(void, sigmoid_gate, (float* y, const float* gate, int64_t n))

}  // namespace aleator
