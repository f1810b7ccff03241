// A convolution over time of each channel by itself, for a block of channels and all tokens of a
// micro-batch, and the runs that tokens form.
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

}  // namespace aleator
