// The scan of a state space whose heads have one decay each (Dao and Gu 2024, arXiv:2405.21060),
// for one head and all tokens of a micro-batch.
#pragma once

#include <cstdint>

#include "layers/convolution.hpp"
#include "simd/dispatch.hpp"

namespace aleator {

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

}  // namespace aleator
