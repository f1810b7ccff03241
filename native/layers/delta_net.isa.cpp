#include "layers/delta_net.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "layers/exponential.hpp"

namespace aleator::ALEATOR_ISA {

void unit_length(float* x, int64_t n, float eps, float scale) {
  const float factor = scale / std::sqrt(dot16(x, x, n) + eps);
  for (int64_t i = 0; i < n; i++) x[i] *= factor;
}

void delta_rates(const DeltaNet& d, float* beta, float* decay) {
  each(beta, d.heads, [](vf x, int64_t) { return 1.0f / (1.0f + exponential(-x)); });
  each(decay, d.heads, [&](vf x, int64_t i) {
    const int64_t n = d.heads - i;
    return exponential(softplus(x + load_some(d.time_bias + i, n)) * load_some(d.a + i, n));
  });
}

// R rows of a head's state, [R, dim], and one token; v and y [R].
template <int R>
static inline void correct(float* state, int64_t dim, const float* q, const float* k,
                           const float* v, float beta, float decay, float* y) {
  const v16 rate = splat16(decay);
  v16 total[R];
  float delta[R];
  const auto chunks = [&](auto&& whole, auto&& part) {
    int64_t i = 0;
    for (; i + 16 <= dim; i += 16) whole(i);
    if (i < dim) part(i, dim - i);
  };
  for (int r = 0; r < R; r++) total[r] = splat16(0);
  const auto recall = [&](int64_t i, auto&&... n) {
    const v16 key = load16(k + i, n...);
    for (int r = 0; r < R; r++)
      total[r] = fused(load16(state + r * dim + i, n...) * rate, key, total[r]);
  };
  chunks(recall, recall);
  for (int r = 0; r < R; r++) delta[r] = (v[r] - sum16(total[r])) * beta, total[r] = splat16(0);
  const auto update = [&](int64_t i, auto&&... n) {
    const v16 key = load16(k + i, n...), query = load16(q + i, n...);
    for (int r = 0; r < R; r++) {
      float* to = state + r * dim + i;
      const v16 h = fused(splat16(delta[r]), key, load16(to, n...) * rate);
      store16(to, h, n...);
      total[r] = fused(h, query, total[r]);
    }
  };
  chunks(update, update);
  for (int r = 0; r < R; r++) y[r] = sum16(total[r]);
}

void delta_scan(const DeltaNet& d, const Runs& runs, int64_t head, int64_t begin, int64_t end,
                const float* x, const float* beta, const float* decay, float* y) {
  const int64_t n = (end - begin) * d.dim, key = d.key_head(head) * d.dim;
  const int64_t row = d.heads * d.dim_v * d.dim, at = (head * d.dim_v + begin) * d.dim;
  std::vector<float> state(static_cast<size_t>(n));
  for (int64_t run = 0; run < runs.n; run++) {
    if (runs.sources[run] < 0)
      std::fill(state.begin(), state.end(), 0.0f);
    else
      std::copy_n(d.state_rows + runs.sources[run] * row + at, n, state.data());
    for (int64_t i = runs.starts[run]; i < runs.starts[run + 1]; i++) {
      const int64_t t = runs.order[i], h = t * d.heads + head;
      const float *q = x + t * d.channels() + key, *k = q + d.keys_at();
      const float* v = x + t * d.channels() + d.values_at() + head * d.dim_v + begin;
      float* out = y + h * d.dim_v + begin;
      int64_t j = 0;
      for (; j + 4 <= end - begin; j += 4)
        correct<4>(&state[j * d.dim], d.dim, q, k, v + j, beta[h], decay[h], out + j);
      for (; j < end - begin; j++)
        correct<1>(&state[j * d.dim], d.dim, q, k, v + j, beta[h], decay[h], out + j);
      if (runs.stores[i] >= 0)
        std::copy_n(state.data(), n, d.state_rows + runs.stores[i] * row + at);
    }
  }
}

void gated_norm(float* y, const float* weight, const float* gate, int64_t n, float eps) {
  const float factor = 1.0f / std::sqrt(dot16(y, y, n) / float(n) + eps);
  each(y, n, [&](vf x, int64_t i) {
    return x * factor * load_some(weight + i, n - i) * silu(load_some(gate + i, n - i));
  });
}

void sigmoid_gate(float* y, const float* gate, int64_t n) {
  each(y, n,
       [&](vf x, int64_t i) { return x / (1.0f + exponential(-load_some(gate + i, n - i))); });
}

}  // namespace aleator::ALEATOR_ISA
