#include "layers/head_space.hpp"

#include <algorithm>
#include <vector>

#include "layers/exponential.hpp"

namespace aleator::ALEATOR_ISA {

void scan_head(const HeadSpace& s, const Runs& runs, int64_t tokens, int64_t head,
               const float* projection, const float* convolved, float* y) {
  const int64_t dim = s.head_dim(), first = head * dim, n = s.state, row = s.inner * n;
  const int64_t b = s.inner + head / (s.heads / s.groups) * n, c = b + s.groups * n;
  std::vector<float> room(size_t(2 * tokens + n));
  float *steps = room.data(), *decays = steps + tokens, *h = decays + tokens;
  for (int64_t t = 0; t < tokens; t++)
    steps[t] = projection[(t + 1) * s.projected() - s.heads + head] + s.time_bias[head];
  each(steps, tokens, [](vf x, int64_t) { return softplus(x); });
  for (int64_t t = 0; t < tokens; t++)
    steps[t] = std::max(steps[t], s.least_step), decays[t] = steps[t] * s.a[head];
  each(decays, tokens, [](vf x, int64_t) { return exponential(x); });
  for (int64_t run = 0; run < runs.n; run++) {
    const int64_t source = runs.sources[run];
    for (int64_t i = first; i < first + dim; i++) {
      if (source < 0)
        std::fill_n(h, n, 0.0f);
      else
        std::copy_n(s.state_rows + source * row + i * n, n, h);
      for (int64_t k = runs.starts[run]; k < runs.starts[run + 1]; k++) {
        const int64_t t = runs.order[k];
        const float* in = convolved + t * s.conv.channels;
        const float decay = decays[t], input = steps[t] * in[i];
        each(h, n, [&](vf old, int64_t j) {
          return fused(splat(decay), old, load_some(in + b + j, n - j) * input);
        });
        y[t * s.inner + i] = dot16(h, in + c, n);
        if (runs.stores[k] >= 0) std::copy_n(h, n, s.state_rows + runs.stores[k] * row + i * n);
      }
    }
  }
  for (int64_t t = 0; t < tokens; t++) {
    const float* in = convolved + t * s.conv.channels + first;
    const float* gate = projection + t * s.projected() + first;
    each(y + t * s.inner + first, dim, [&](vf x, int64_t i) {
      return fused(splat(s.d[head]), load_some(in + i, dim - i), x) *
             silu(load_some(gate + i, dim - i));
    });
  }
}

}  // namespace aleator::ALEATOR_ISA
