#include "layers/convolution.hpp"

#include "layers/exponential.hpp"

namespace aleator::ALEATOR_ISA {

void convolve(const Convolution& conv, const Runs& runs, int64_t begin, int64_t end, const float* x,
              int64_t stride, bool activated, float* y) {
  const int64_t before = conv.width - 1, n = end - begin;
  float history[widest_convolution][most_channels];
  for (int64_t run = 0; run < runs.n; run++) {
    const int64_t first = runs.starts[run], last = runs.starts[run + 1];
    const float* kept = runs.sources[run] < 0
                            ? nullptr
                            : conv.rows + (runs.sources[run] * conv.channels + begin) * before;
    for (int64_t k = 0; k < before; k++)
      for (int64_t c = 0; c < n; c++) history[k][c] = kept ? kept[c * before + k] : 0.0f;
    // Channels' values at index i of the run, from -before on.
    const auto values = [&](int64_t i) {
      return i < 0 ? history[i + before] : x + runs.order[first + i] * stride + begin;
    };
    for (int64_t i = 0; i < last - first; i++) {
      float* out = y + runs.order[first + i] * conv.channels + begin;
      const float* rows[widest_convolution];
      for (int64_t k = 0; k < conv.width; k++) rows[k] = values(i - before + k);
      each(out, n, [&](vf, int64_t c) {
        vf total = {};
        for (int64_t k = 0; k < conv.width; k++)
          total = fused(load_some(rows[k] + c, n - c),
                        load_some(conv.weight + k * conv.channels + begin + c, n - c), total);
        const vf biased = total + load_some(conv.bias + begin + c, n - c);
        return activated ? silu(biased) : biased;
      });
    }
    for (int64_t i = 0; i < last - first; i++) {
      if (runs.stores[first + i] < 0) continue;
      float* to = conv.rows + (runs.stores[first + i] * conv.channels + begin) * before;
      for (int64_t k = 0; k < before; k++) {
        const float* from = values(i - before + 1 + k);
        for (int64_t c = 0; c < n; c++) to[c * before + k] = from[c];
      }
    }
  }
}

}  // namespace aleator::ALEATOR_ISA
