#include "layers/ssm.hpp"

#include <algorithm>

#include "layers/exponential.hpp"

namespace aleator::ALEATOR_ISA {

void convolve(const StateSpace& s, const Runs& runs, int64_t begin, int64_t end, const float* xz,
              float* u) {
  const int64_t before = s.width - 1, n = end - begin;
  float history[widest_convolution][most_channels];
  for (int64_t run = 0; run < runs.n; run++) {
    const int64_t first = runs.starts[run], last = runs.starts[run + 1];
    const float* kept = runs.sources[run] < 0
                            ? nullptr
                            : s.conv_rows + (runs.sources[run] * s.inner + begin) * before;
    for (int64_t k = 0; k < before; k++)
      for (int64_t c = 0; c < n; c++) history[k][c] = kept ? kept[c * before + k] : 0.0f;
    // Channels' values at index i of the run, from -before on.
    const auto values = [&](int64_t i) {
      return i < 0 ? history[i + before] : xz + runs.order[first + i] * 2 * s.inner + begin;
    };
    for (int64_t i = 0; i < last - first; i++) {
      float* out = u + runs.order[first + i] * s.inner + begin;
      const float* rows[widest_convolution];
      for (int64_t k = 0; k < s.width; k++) rows[k] = values(i - before + k);
      each(out, n, [&](vf, int64_t c) {
        vf total = {};
        for (int64_t k = 0; k < s.width; k++)
          total +=
              load_some(rows[k] + c, n - c) * load_some(s.conv + k * s.inner + begin + c, n - c);
        return silu(total + load_some(s.conv_bias + begin + c, n - c));
      });
    }
    for (int64_t i = 0; i < last - first; i++) {
      if (runs.stores[first + i] < 0) continue;
      float* to = s.conv_rows + (runs.stores[first + i] * s.inner + begin) * before;
      for (int64_t k = 0; k < before; k++) {
        const float* from = values(i - before + 1 + k);
        for (int64_t c = 0; c < n; c++) to[c * before + k] = from[c];
      }
    }
  }
}

// R channels from c on, states [p, p + lanes): adds their part of C . h to y.
template <int R>
static void scan_part(const StateSpace& s, const Runs& runs, int64_t run, int64_t c, int64_t p,
                      const float* u, const float* dt, const float* selected, float* y) {
  const int64_t n = s.state - p;
  vf a[R], h[R];
  for (int r = 0; r < R; r++) {
    const int64_t at = (c + r) * s.state + p;
    a[r] = load_some(s.a + at, n);
    h[r] = runs.sources[run] < 0
               ? vf{}
               : load_some(s.state_rows + runs.sources[run] * s.inner * s.state + at, n);
  }
  for (int64_t i = runs.starts[run]; i < runs.starts[run + 1]; i++) {
    const int64_t t = runs.order[i], at = t * s.inner + c;
    const float* bc = selected + t * s.selected() + s.rank + p;
    const vf b = load_some(bc, n), out = load_some(bc + s.state, n);
    for (int r = 0; r < R; r++) {
      const float step = dt[at + r];
      h[r] = exponential(a[r] * step) * h[r] + b * (step * u[at + r]);
      y[at + r] += sum(h[r] * out);
    }
    if (runs.stores[i] >= 0)
      for (int r = 0; r < R; r++)
        store_some(s.state_rows + (runs.stores[i] * s.inner + c + r) * s.state + p, h[r], n);
  }
}

void scan(const StateSpace& s, const Runs& runs, int64_t tokens, int64_t begin, int64_t end,
          const float* u, float* dt, const float* selected, const float* xz, float* y) {
  const int64_t n = end - begin;
  for (int64_t t = 0; t < tokens; t++) {
    each(dt + t * s.inner + begin, n, [](vf x, int64_t) { return softplus(x); });
    std::fill_n(y + t * s.inner + begin, n, 0.0f);
  }
  for (int64_t run = 0; run < runs.n; run++)
    for (int64_t p = 0; p < s.state; p += lanes) {
      int64_t c = begin;
      for (; c + 4 <= end; c += 4) scan_part<4>(s, runs, run, c, p, u, dt, selected, y);
      for (; c < end; c++) scan_part<1>(s, runs, run, c, p, u, dt, selected, y);
    }
  for (int64_t t = 0; t < tokens; t++) {
    const float* in = u + t * s.inner + begin;
    const float* gate = xz + t * 2 * s.inner + s.inner + begin;
    each(y + t * s.inner + begin, n, [&](vf x, int64_t c) {
      return (x + load_some(s.d + begin + c, n - c) * load_some(in + c, n - c)) *
             silu(load_some(gate + c, n - c));
    });
  }
}

}  // namespace aleator::ALEATOR_ISA
