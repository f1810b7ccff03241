// The scan of a selective state space (Gu and Dao 2023, arXiv:2312.00752), for a block of channels
// and all tokens of a micro-batch.
#pragma once

#include <cstdint>

#include "layers/convolution.hpp"
#include "simd/dispatch.hpp"

namespace aleator {

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

}  // namespace aleator
