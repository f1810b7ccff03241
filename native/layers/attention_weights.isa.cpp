#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "layers/attention.hpp"
#include "layers/exponential.hpp"

namespace aleator::ALEATOR_ISA {

void lean(float* scores, int64_t n, float slope, const int32_t* positions, int32_t position) {
  for (int64_t j = 0; j < n; j++) {
    const float far = slope * -float(std::abs(positions[j] - position));
    scores[j] = scores[j] + far;
  }
}

// The largest of n floats, a multiple of 16, and of one more.
static inline float largest(const float* x, int64_t n, float least) {
  constexpr int sets = 4;  // so that a comparison need not wait for the last one
  vf tops[sets];
  for (vf& t : tops) t = splat(least);
  const auto meet = [&](int k, vf v) { tops[k] = higher(v, tops[k]); };
  int64_t i = 0;
  for (; i + sets * lanes <= n; i += sets * lanes)
    for (int k = 0; k < sets; k++) meet(k, load(x + i + k * lanes));
  for (; i < n; i += lanes) meet(0, load(x + i));
  for (int k = 1; k < sets; k++) meet(0, tops[k]);
  for (int k = 0; k < lanes; k++) least = tops[0][k] > least ? tops[0][k] : least;
  return least;
}
// n times sixteen scores, added to the total one after the other.
template <int n>
[[gnu::always_inline]] static inline void weigh_some(float* scores, float highest, v16& total) {
  constexpr int vectors = n * parts16;
  vf e[vectors];
  for (int k = 0; k < vectors; k++) e[k] = load(scores + k * lanes) - highest;
  exponentials<true>(e);
  for (int k = 0; k < vectors; k++) {
    store(scores + k * lanes, e[k]);
    total.part[k % parts16] += e[k];
  }
}

// The same for n scores, a multiple of sixteen or less than one beyond it.
[[gnu::always_inline]] static inline void weigh_all(float* scores, int64_t n, float highest,
                                                    v16& total) {
  constexpr int together = lanes / 4;  // four registers
  int64_t j = 0;
  for (; j + 16 * together <= n; j += 16 * together)
    weigh_some<together>(scores + j, highest, total);
  for (; j < n; j += 16) weigh_some<1>(scores + j, highest, total);
}
static inline float factor(v16 total, float highest, float sink) {
  return 1.0f / (sum16(total) + exponential(splat(sink - highest))[0]);
}

float weigh_keys(float* scores, int64_t n, float sink) {
  for (int64_t j = n; j % 16; j++) scores[j] = -INFINITY;
  const float highest = largest(scores, padded(n), sink);
  v16 total = splat16(0);
  weigh_all(scores, n, highest, total);
  return factor(total, highest, sink);
}

// Calls f(query, low, high, a, b) for each query that sees some of columns [begin, end): those are
// [begin + low, begin + high), in the sixteens [begin + a, begin + b).
template <class F>
static void each_seen(const Attended& seen, int64_t begin, int64_t end, F&& f) {
  for (int64_t i = 0; i < seen.n_queries; i++) {
    const int64_t low = std::max<int64_t>(seen.first[i] - begin, 0);
    const int64_t high = std::min(seen.end[i], end) - begin;
    if (low < high) f(i, low, high, low / 16 * 16, padded(high));
  }
}

// Scores of columns [a, b) outside [low, high), which a query does not see.
[[gnu::noinline]] static void hide(float* row, int64_t low, int64_t high, int64_t a, int64_t b) {
  for (; a < low; a++) row[a] = -INFINITY;
  for (; high < b; high++) row[high] = -INFINITY;
}

void find_highest(const Attended& seen, int64_t begin, int64_t end, float* scores, int64_t stride,
                  float* highest) {
  each_seen(seen, begin, end, [&](int64_t i, int64_t low, int64_t high, int64_t a, int64_t b) {
    float* row = scores + i * stride;
    if (a < low || high < b) hide(row, low, high, a, b);
    v16 top = load16(highest + i * 16);
    for (int64_t j = a; j < b; j += 16)
      for (int k = 0; k < parts16; k++)
        top.part[k] = higher(load(row + j + k * lanes), top.part[k]);
    store16(highest + i * 16, top);
  });
}

void weigh_columns(const Attended& seen, int64_t begin, int64_t end, float* scores, int64_t stride,
                   const float* highest, float* totals) {
  each_seen(seen, begin, end, [&](int64_t i, int64_t, int64_t, int64_t a, int64_t b) {
    float* row = scores + i * stride;
    v16 total = load16(totals + i * 16);
    weigh_all(row + a, b - a, highest[i], total);
    store16(totals + i * 16, total);
  });
}

float weight_factor(const float* totals, int64_t first, float highest, float sink) {
  float in_order[16];
  for (int64_t k = 0; k < 16; k++) in_order[k] = totals[(first + k) % 16];
  return factor(load16(in_order), highest, sink);
}

}  // namespace aleator::ALEATOR_ISA
