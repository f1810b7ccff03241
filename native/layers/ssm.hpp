// The convolution and the scan of a selective state space (Gu and Dao 2023, arXiv:2312.00752), for
// a block of channels and all tokens of a micro-batch.
#pragma once

#include <cstdint>

#include "simd/dispatch.hpp"

namespace aleator {

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

struct StateSpace {
  int64_t inner = 0, width = 0, state = 0, rank = 0;  // channels, convolution, N, time step
  const float* conv = nullptr;                        // [width, inner]: transposed
  const float* conv_bias = nullptr;                   // [inner]
  const float* a = nullptr;                           // [inner, state]
  const float* d = nullptr;                           // [inner]
  float* conv_rows = nullptr;                         // [rows, inner, width - 1]
  float* state_rows = nullptr;                        // [rows, inner, state]
  int64_t stride = 2 * inner;  // from one token's values to the next's, where they are convolved
  int64_t selected() const { return rank + 2 * state; }
};

constexpr int64_t most_channels = 64;  // in one block
constexpr int64_t widest_convolution = 64;

// u[t][c] = silu(sum over k of conv[k][c] * (value of channel c, width - 1 - k tokens ago) + bias)
// for channels [begin, end), at most most_channels.  xz [T, stride]: the values first.
ALEATOR_DECLARE(void convolve(const StateSpace& s, const Runs& runs, int64_t begin, int64_t end,
                              const float* xz, float* u))
// h(t) = exp(dt a) h(t - 1) + dt u(t) B(t);  y(t) = (C(t) . h(t) + d u(t)) * silu(gate(t)), for
// channels [begin, end).  dt [T, inner] is softplus's argument and is overwritten; selected
// [T, rank + 2 N] holds B and C after the time step's numbers; the gate is the second half of xz.
ALEATOR_DECLARE(void scan(const StateSpace& s, const Runs& runs, int64_t tokens, int64_t begin,
                          int64_t end, const float* u, float* dt, const float* selected,
                          const float* xz, float* y))

}  // namespace aleator
