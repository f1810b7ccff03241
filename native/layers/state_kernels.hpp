// What layers that keep a state compute, for parts of a micro-batch: convolutions over time,
// selective state spaces (Gu and Dao 2023, arXiv:2312.00752), those whose heads have one decay each
// (Dao and Gu 2024, arXiv:2405.21060), and gated delta nets (Yang et al. 2024, arXiv:2412.06464).
#pragma once

#include <cstdint>

#include "simd/dispatch.hpp"

namespace aleator {

// --- a convolution over time of each channel by itself, and the runs that tokens form ---

// Tokens in runs: each run continues one state, one token after the other, and comes after the run
// that leaves that state.
struct Runs {
  int64_t n = 0;
  const int64_t* starts = nullptr;   // [n + 1], in `order`
  const int64_t* sources = nullptr;  // [n] the row of states to start from, or -1: zeros
  const int64_t* order = nullptr;    // [T] the tokens
  const int64_t* stores = nullptr;   // [T], as `order`: the row that keeps the state after the
                                     // token, or -1
};

constexpr int64_t most_channels = 64;  // in one block
constexpr int64_t widest_convolution = 64;

struct Convolution {
  int64_t channels = 0, width = 0;
  const float* weight = nullptr;  // [width, channels]: transposed
  const float* bias = nullptr;    // [channels]
  float* rows = nullptr;          // [rows, channels, width - 1]: the latest values
};

// y[t][c] = sum over k of weight[k][c] * (value of channel c, width - 1 - k tokens ago) + bias,
// `activated` by silu, for channels [begin, end), at most most_channels.  x: rows of values,
// `stride` apart; y [T, channels].
ALEATOR_KERNEL(void, convolve,
               (const Convolution& conv, const Runs& runs, int64_t begin, int64_t end,
                const float* x, int64_t stride, bool activated, float* y))

// --- selective state spaces ---

struct StateSpace {
  int64_t inner = 0, state = 0, rank = 0;  // channels, N, time step
  Convolution conv;
  const float* a = nullptr;     // [inner, state]
  const float* d = nullptr;     // [inner]
  float* state_rows = nullptr;  // [rows, inner, state]
  int64_t selected() const { return rank + 2 * state; }
};

// h(t) = exp(dt a) h(t - 1) + dt u(t) B(t);  y(t) = (C(t) . h(t) + d u(t)) * silu(gate(t)), for
// channels [begin, end).  dt [T, inner] is softplus's argument and is overwritten; selected
// [T, rank + 2 N] holds B and C after the time step's numbers; the gate is the second half of xz.
ALEATOR_KERNEL(void, scan,
               (const StateSpace& s, const Runs& runs, int64_t tokens, int64_t begin, int64_t end,
                const float* u, float* dt, const float* selected, const float* xz, float* y))

// --- state spaces whose heads have one decay each ---

// A row of the projection: the gate [inner], the convolution's channels, a time step for each head.
// The channels are the values [inner], then B and then C, each [groups, state].
struct HeadSpace {
  int64_t inner = 0, state = 0, heads = 0, groups = 1;
  Convolution conv;
  const float* time_bias = nullptr;  // [heads]
  const float* a = nullptr;          // [heads]
  const float* d = nullptr;          // [heads]
  float least_step = 0;
  // What the scan gives is RMS-normalised, in norm_groups parts, times the weights [inner]; or
  // none.
  const float* norm = nullptr;
  int64_t norm_groups = 1;
  float* state_rows = nullptr;  // [rows, inner, state]
  int64_t projected() const { return inner + conv.channels + heads; }
  int64_t head_dim() const { return inner / heads; }
};

// Of the channels of one head: h(t) = exp(dt a) h(t - 1) + dt u(t) B(t); y(t) = (C(t) . h(t) + d
// u(t)) * silu(gate(t)).  projection [T, projected]; convolved [T, conv.channels]; y [T, inner].
ALEATOR_KERNEL(void, scan_head,
               (const HeadSpace& s, const Runs& runs, int64_t tokens, int64_t head,
                const float* projection, const float* convolved, float* y))

// --- gated delta nets: a head's state is a matrix that maps keys to values; a token first lets it
// decay, and then corrects what the state has for the token's key ---

struct DeltaNet {
  int64_t key_heads = 0, heads = 0;  // of queries and keys; of values
  int64_t dim = 0, dim_v = 0;        // of a key; of a value
  bool tiled = false;                // see key_head
  bool by_channel = false;           // a decay for each channel of a head's keys, not for each head
  float eps = 0;                     // added to a key's sum of squares
  // Its channels are all queries, then all keys, then all values.
  Convolution conv;
  const float* a = nullptr;          // [heads], negative
  const float* time_bias = nullptr;  // [decays]
  const float* norm = nullptr;       // [dim_v]
  float* state_rows = nullptr;       // [rows, heads, dim_v, dim]
  int64_t keys_at() const { return key_heads * dim; }
  int64_t values_at() const { return 2 * key_heads * dim; }
  int64_t channels() const { return values_at() + heads * dim_v; }
  int64_t decays() const { return by_channel ? heads * dim : heads; }
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
// one head's S.  x [T, channels] holds q, k and v; beta [T, heads]; decay [T, decays]; y [T, heads,
// dim_v].
ALEATOR_KERNEL(void, delta_scan,
               (const DeltaNet& d, const Runs& runs, int64_t head, int64_t begin, int64_t end,
                const float* x, const float* beta, const float* decay, float* y))
// y = rms_norm(y) * silu(gate), n elements.
ALEATOR_KERNEL(void, gated_norm,
               (float* y, const float* weight, const float* gate, int64_t n, float eps))
// y /= 1 + e^-gate, n elements.
ALEATOR_KERNEL(void, sigmoid_gate, (float* y, const float* gate, int64_t n))

}  // namespace aleator
