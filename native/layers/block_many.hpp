// Products with many tokens: sixteen rows of W are taken apart once, for all of them.  AVX2 and
// AVX-512; included by block_linear.isa.cpp only.
#pragma once

#include "layers/block_linear.hpp"

namespace aleator::ALEATOR_ISA {

constexpr int panel_rows = 16;
constexpr int64_t panel_chunk =
    1024;  // elements of these rows at a time: with their scales they stay near
constexpr int64_t near_tokens = 256;

}  // namespace aleator::ALEATOR_ISA

#if defined(ALEATOR_ISA_v4)
#include "layers/block_panel_vnni.hpp"
#else
#include "layers/block_panel_pairs.hpp"
#endif

namespace aleator::ALEATOR_ISA {

template <class B>
static void many(const Weights& w, int64_t begin, int64_t end, const Rounded& x, float* y,
                 int64_t y_stride) {
  Panel<B> panel;
  const int64_t bytes = panel_rows * w.row_bytes, ahead = (bytes + 8191) / bytes * bytes;
  alignas(64) float acc[near_tokens][panel_rows];
  for (int64_t first = 0; first < x.tokens; first += near_tokens) {
    const int64_t tokens = x.tokens - first < near_tokens ? x.tokens - first : near_tokens;
    for (int64_t row = begin; row < end; row += panel_rows) {
      const int64_t rows = end - row < panel_rows ? end - row : panel_rows;
      std::memset(acc, 0, size_t(tokens) * sizeof acc[0]);
      for (int64_t k = 0; k < x.in; k += panel_chunk) {
        const int64_t n = x.in - k < panel_chunk ? x.in - k : panel_chunk;
        panel.fill(w, row, rows, k, n, ahead);
        all_tokens(panel, n, x, first, tokens, k, acc);
      }
      for (int64_t t = 0; t < tokens; t++)
        for (int64_t r = 0; r < rows; r++)
          y[(first + t) * y_stride + row + r] = w.bias ? acc[t][r] + w.bias[row + r] : acc[t][r];
    }
  }
}

}  // namespace aleator::ALEATOR_ISA
