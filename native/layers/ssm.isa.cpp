#include "layers/ssm.hpp"

#include <algorithm>
#include <vector>

#include "layers/exponential.hpp"

namespace aleator::ALEATOR_ISA {

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
  float* h = room.data();
  const int64_t source = runs.sources[run], row = s.inner * s.state;
  for (int64_t k = 0; k < s.state; k++)
    h[k] = source < 0 ? 0.0f : s.state_rows[source * row + c * s.state + k];
  for (int64_t i = runs.starts[run]; i < runs.starts[run + 1]; i++) {
    const int64_t t = runs.order[i], at = t * s.inner + c;
    const float* bc = selected + t * s.selected() + s.rank;
    const float step = dt[at], input = step * u[at];
    const float* a = s.a + c * s.state;
    each(h, s.state, [&](vf old, int64_t k) {
      const int64_t n = s.state - k;
      return fused(exponential(load_some(a + k, n) * step), old, load_some(bc + k, n) * input);
    });
    y[at] = dot16(h, bc + s.state, s.state);
    if (runs.stores[i] >= 0)
      std::copy_n(h, s.state, s.state_rows + runs.stores[i] * row + c * s.state);
  }
}

void scan(const StateSpace& s, const Runs& runs, int64_t tokens, int64_t begin, int64_t end,
          const float* u, float* dt, const float* selected, const float* xz, float* y) {
  const int64_t n = end - begin;
  for (int64_t t = 0; t < tokens; t++)
    each(dt + t * s.inner + begin, n, [](vf x, int64_t) { return softplus(x); });
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
    each(y + t * s.inner + begin, n, [&](vf x, int64_t c) {
      return fused(load_some(s.d + begin + c, n - c), load_some(in + c, n - c), x) *
             silu(load_some(gate + c, n - c));
    });
  }
}

}  // namespace aleator::ALEATOR_ISA
