#include "layers/state_kernels.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

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
      each(out, n, [&](vf, auto of) {
        vf total = {};
        for (int64_t k = 0; k < conv.width; k++)
          total = fused(of(rows[k]), of(conv.weight + k * conv.channels + begin), total);
        const vf biased = total + of(conv.bias + begin);
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

// Takes a state of n numbers, which stands at `at` in rows of `row` numbers, through a run: f(t)
// changes it for a token.
template <class F>
static inline void each_token(const Runs& runs, int64_t run, float* rows, int64_t row, int64_t at,
                              int64_t n, float* state, F&& f) {
  if (runs.sources[run] < 0)
    std::fill_n(state, n, 0.0f);
  else
    std::copy_n(rows + runs.sources[run] * row + at, n, state);
  for (int64_t i = runs.starts[run]; i < runs.starts[run + 1]; i++) {
    f(runs.order[i]);
    if (runs.stores[i] >= 0) std::copy_n(state, n, rows + runs.stores[i] * row + at);
  }
}

// --- selective state spaces ---

// R channels from c on of at most 16 states, which stay in registers over a run.
template <int R>
static void scan_short(const StateSpace& s, const Runs& runs, int64_t run, int64_t c,
                       const float* u, const float* dt, const float* selected, float* y) {
  v16 a[R], h[R];
  const int64_t source = runs.sources[run], row = s.inner * s.state;
  for (int r = 0; r < R; r++) {
    const int64_t at = (c + r) * s.state;
    a[r] = load_up_to16(s.a + at, s.state);
    h[r] = source < 0 ? splat16(0) : load_up_to16(s.state_rows + source * row + at, s.state);
  }
  for (int64_t i = runs.starts[run]; i < runs.starts[run + 1]; i++) {
    const int64_t t = runs.order[i], at = t * s.inner + c;
    const float* bc = selected + t * s.selected() + s.rank;
    const v16 b = load_up_to16(bc, s.state), out = load_up_to16(bc + s.state, s.state);
    for (int r = 0; r < R; r++) {
      const float step = dt[at + r];
      const v16 rate = a[r] * splat16(step), input = b * splat16(step * u[at + r]);
      h[r] = fused(each_part([&](int k) { return exponential(rate.part[k]); }), h[r], input);
      y[at + r] = sum16(fused(h[r], out, splat16(0)));
      if (runs.stores[i] >= 0) {
        float* to = s.state_rows + runs.stores[i] * row + (c + r) * s.state;
        s.state >= 16 ? store16(to, h[r]) : store16(to, h[r], s.state);
      }
    }
  }
}

// One channel whose states are more: kept in `room`.
static void scan_long(const StateSpace& s, const Runs& runs, int64_t run, int64_t c, const float* u,
                      const float* dt, const float* selected, float* y, std::vector<float>& room) {
  room.resize(s.state);
  const int64_t row = s.inner * s.state, first = c * s.state;
  float* h = room.data();
  each_token(runs, run, s.state_rows, row, first, s.state, h, [&](int64_t t) {
    const int64_t at = t * s.inner + c;
    const float* bc = selected + t * s.selected() + s.rank;
    const float step = dt[at], input = step * u[at];
    each(h, s.state, [&](vf old, auto of) {
      return fused(exponential(of(s.a + first) * step), old, of(bc) * input);
    });
    y[at] = dot16(h, bc + s.state, s.state);
  });
}

void scan(const StateSpace& s, const Runs& runs, int64_t tokens, int64_t begin, int64_t end,
          const float* u, float* dt, const float* selected, const float* xz, float* y) {
  const int64_t n = end - begin;
  for (int64_t t = 0; t < tokens; t++)
    each(dt + t * s.inner + begin, n, [](vf x, auto) { return softplus(x); });
  std::vector<float> room;
  for (int64_t run = 0; run < runs.n; run++) {
    int64_t c = begin;
    if (s.state <= 16) {
      for (; c + 4 <= end; c += 4) scan_short<4>(s, runs, run, c, u, dt, selected, y);
      for (; c < end; c++) scan_short<1>(s, runs, run, c, u, dt, selected, y);
    }
    for (; c < end; c++) scan_long(s, runs, run, c, u, dt, selected, y, room);
  }
  for (int64_t t = 0; t < tokens; t++) {
    const float* in = u + t * s.inner + begin;
    const float* gate = xz + t * 2 * s.inner + s.inner + begin;
    each(y + t * s.inner + begin, n,
         [&](vf x, auto of) { return fused(of(s.d + begin), of(in), x) * silu(of(gate)); });
  }
}

// --- state spaces whose heads have one decay each ---

void scan_head(const HeadSpace& s, const Runs& runs, int64_t tokens, int64_t head,
               const float* projection, const float* convolved, float* y) {
  const int64_t dim = s.head_dim(), first = head * dim, n = s.state, row = s.inner * n;
  const int64_t b = s.inner + head / (s.heads / s.groups) * n, c = b + s.groups * n;
  std::vector<float> room(size_t(2 * tokens + n));
  float *steps = room.data(), *decays = steps + tokens, *h = decays + tokens;
  for (int64_t t = 0; t < tokens; t++)
    steps[t] = projection[(t + 1) * s.projected() - s.heads + head] + s.time_bias[head];
  each(steps, tokens, [](vf x, auto) { return softplus(x); });
  for (int64_t t = 0; t < tokens; t++)
    steps[t] = std::max(steps[t], s.least_step), decays[t] = steps[t] * s.a[head];
  each(decays, tokens, [](vf x, auto) { return exponential(x); });
  for (int64_t run = 0; run < runs.n; run++)
    for (int64_t i = first; i < first + dim; i++)
      each_token(runs, run, s.state_rows, row, i * n, n, h, [&](int64_t t) {
        const float* in = convolved + t * s.conv.channels;
        const float decay = decays[t], input = steps[t] * in[i];
        each(h, n, [&](vf old, auto of) { return fused(splat(decay), old, of(in + b) * input); });
        y[t * s.inner + i] = dot16(h, in + c, n);
      });
  for (int64_t t = 0; t < tokens; t++) {
    const float* in = convolved + t * s.conv.channels + first;
    const float* gate = projection + t * s.projected() + first;
    each(y + t * s.inner + first, dim,
         [&](vf x, auto of) { return fused(splat(s.d[head]), of(in), x) * silu(of(gate)); });
  }
}

// --- gated delta nets ---

void unit_length(float* x, int64_t n, float eps, float scale) {
  const float factor = scale / std::sqrt(dot16(x, x, n) + eps);
  for (int64_t i = 0; i < n; i++) x[i] *= factor;
}

void delta_rates(const DeltaNet& d, float* beta, float* decay) {
  each(beta, d.heads, [](vf x, auto) { return 1.0f / (1.0f + exponential(-x)); });
  if (!d.by_channel)
    return each(decay, d.heads, [&](vf x, auto of) {
      return exponential(softplus(x + of(d.time_bias)) * of(d.a));
    });
  for (int64_t h = 0; h < d.heads; h++)
    each(decay + h * d.dim, d.dim, [&](vf x, auto of) {
      return exponential(softplus(x + of(d.time_bias + h * d.dim)) * d.a[h]);
    });
}

// R rows of a head's state, [R, dim], and one token; v and y [R].  decay: one number, or Channels'.
template <int R, bool Channels>
static inline void correct(float* state, int64_t dim, const float* q, const float* k,
                           const float* v, float beta, const float* decay, float* y) {
  const v16 all = splat16(*decay);
  const auto rates = [&](int64_t i, auto... n) { return Channels ? load16(decay + i, n...) : all; };
  v16 total[R];
  float delta[R];
  const auto chunks = [&](auto&& whole, auto&& part) {
    int64_t i = 0;
    for (; i + 16 <= dim; i += 16) whole(i);
    if (i < dim) part(i, dim - i);
  };
  for (int r = 0; r < R; r++) total[r] = splat16(0);
  const auto recall = [&](int64_t i, auto&&... n) {
    const v16 key = load16(k + i, n...), rate = rates(i, n...);
    for (int r = 0; r < R; r++)
      total[r] = fused(load16(state + r * dim + i, n...) * rate, key, total[r]);
  };
  chunks(recall, recall);
  for (int r = 0; r < R; r++) delta[r] = (v[r] - sum16(total[r])) * beta, total[r] = splat16(0);
  const auto update = [&](int64_t i, auto&&... n) {
    const v16 key = load16(k + i, n...), query = load16(q + i, n...), rate = rates(i, n...);
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

template <bool Channels>
static void correct_runs(const DeltaNet& d, const Runs& runs, int64_t head, int64_t begin,
                         int64_t end, const float* x, const float* beta, const float* decay,
                         float* y) {
  const int64_t n = (end - begin) * d.dim, key = d.key_head(head) * d.dim;
  const int64_t row = d.heads * d.dim_v * d.dim, at = (head * d.dim_v + begin) * d.dim;
  std::vector<float> state(static_cast<size_t>(n));
  for (int64_t run = 0; run < runs.n; run++)
    each_token(runs, run, d.state_rows, row, at, n, state.data(), [&](int64_t t) {
      const int64_t h = t * d.heads + head;
      const float *q = x + t * d.channels() + key, *k = q + d.keys_at();
      const float* v = x + t * d.channels() + d.values_at() + head * d.dim_v + begin;
      float* out = y + h * d.dim_v + begin;
      const float* stays = decay + h * (Channels ? d.dim : 1);
      int64_t j = 0;
      for (; j + 4 <= end - begin; j += 4)
        correct<4, Channels>(&state[j * d.dim], d.dim, q, k, v + j, beta[h], stays, out + j);
      for (; j < end - begin; j++)
        correct<1, Channels>(&state[j * d.dim], d.dim, q, k, v + j, beta[h], stays, out + j);
    });
}

void delta_scan(const DeltaNet& d, const Runs& runs, int64_t head, int64_t begin, int64_t end,
                const float* x, const float* beta, const float* decay, float* y) {
  (d.by_channel ? correct_runs<true> : correct_runs<false>)(d, runs, head, begin, end, x, beta,
                                                            decay, y);
}

void gated_norm(float* y, const float* weight, const float* gate, int64_t n, float eps) {
  const float factor = 1.0f / std::sqrt(dot16(y, y, n) / float(n) + eps);
  each(y, n, [&](vf x, auto of) { return x * factor * of(weight) * silu(of(gate)); });
}

void sigmoid_gate(float* y, const float* gate, int64_t n) {
  each(y, n, [&](vf x, auto of) { return x / (1.0f + exponential(-of(gate))); });
}

}  // namespace aleator::ALEATOR_ISA
