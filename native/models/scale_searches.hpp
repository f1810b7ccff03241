// The searches for the scale of a group are llama.cpp's (ggml-quants.c: make_qx_quants,
// make_q3_quants, make_qkx2_quants, make_qkx3_quants, make_qp_quants): which scales they try, and
// in which order they round and add, decides the bytes.  Here each lane has a block of its own, so
// that sums keep that order.
#pragma once

#include <cmath>

#include "layers/exponential.hpp"

namespace aleator::ALEATOR_ISA {

constexpr float nothing = 1e-15f;  // a group whose magnitudes are below is all zeros

static inline vi select(vi condition, vi yes, vi no) {
  return (yes & condition) | (no & ~condition);
}
static inline bool any(vi condition) {
  int32_t found = 0;
  for (int i = 0; i < lanes; i++) found |= condition[i];
  return found;
}
static inline vf root(vf x) {
  for (int i = 0; i < lanes; i++) x[i] = std::sqrt(x[i]);
  return x;
}
static inline vf number(vi q) { return __builtin_convertvector(q, vf); }
// Ties to even; beyond 2^22 what the sum's bits say.
static inline vi nearest(vf x) {
  return (reinterpret<vi>(x + 12582912.0f) & 0x007fffff) - 0x00400000;
}
static inline vi limited(vi q, int low, int high) {
  const vi l = low - vi{}, h = high - vi{};
  q = select(q > l, q, l);
  return select(q < h, q, h);
}
static inline vf half(vf x) {
  for (int i = 0; i < lanes; i++) x[i] = f32_of_f16(f16_of_f32(x[i]));
  return x;
}

// The element of the largest magnitude, the first of several, and that magnitude.
static inline vf extreme(const vf* x, int n, vf& magnitude) {
  vf found = {};
  magnitude = vf{};
  for (int i = 0; i < n; i++) {
    const vf a = absolute(x[i]);
    const vi more = a > magnitude;
    magnitude = where(more, a, magnitude), found = where(more, x[i], found);
  }
  return found;
}

// Sums from which the best scale of given levels follows.
struct Fit {
  vf product = {}, square = {};
  void add(vf weighed, vf weight, vi level) {
    const vf l = number(level);
    product += weighed * l, square += weight * l * l;
  }
  vf scale() const { return where(square > 0.0f, product / square, vf{}); }
};

// Levels -levels to levels - 1, of which q gets `levels` more: twenty scales are tried.
static vf signed_scale(const vf* x, const vf* w, int n, int levels, vi* q) {
  vf magnitude, weighed[32];
  const vf top = extreme(x, n, magnitude);
  const vi zero = magnitude < nothing;
  vi level[32];
  const auto fit = [&](vf inverse) {
    Fit f;
    for (int i = 0; i < n; i++) {
      level[i] = limited(nearest(inverse * x[i]), -levels, levels - 1);
      f.add(weighed[i], w[i], level[i]);
    }
    return f;
  };
  for (int i = 0; i < n; i++) weighed[i] = w[i] * x[i];
  Fit f = fit(float(-levels) / top);
  for (int i = 0; i < n; i++) q[i] = (level[i] + levels) & ~zero;
  vf scale = where(f.square != 0.0f, f.product / f.square, vf{}), best = scale * f.product;
  for (int step = -9; step <= 9; step++) {
    if (step == 0) continue;
    f = fit(-(levels + 0.1f * step) / top);
    const vi better = (f.square > 0.0f) & (f.product * f.product > best * f.square) & ~zero;
    if (!any(better)) continue;
    for (int i = 0; i < n; i++) q[i] = select(better, level[i] + levels, q[i]);
    const vf now = f.product / f.square;
    scale = where(better, now, scale), best = where(better, now * f.product, best);
  }
  return where(zero, vf{}, scale);
}

// Rounds x times `inverse` to levels, then moves one after the other where that lessens the error,
// five times at most; the scale.
template <class Level>
static vf descended(const vf* x, const vf* w, int n, vf inverse, bool positive, vi* q,
                    Level&& level) {
  Fit f;
  for (int i = 0; i < n; i++) {
    q[i] = level(nearest(inverse * x[i]));
    f.add(w[i] * x[i], w[i], q[i]);
  }
  for (int round = 0; round < 5; round++) {
    bool moved = false;
    for (int i = 0; i < n; i++) {
      const vf weighed = w[i] * x[i], l = number(q[i]);
      vf product = f.product - weighed * l, square = f.square - w[i] * l * l;
      vi better = product > 0.0f;
      if (positive) better &= square > 0.0f;
      const vi now = level(nearest(x[i] * square / product));
      better &= now != q[i];
      product += weighed * number(now), square += w[i] * number(now) * number(now);
      if (!positive) better &= square > 0.0f;
      better &= product * product * f.square > f.product * f.product * square;
      if (!any(better)) continue;
      moved = true;
      q[i] = select(better, now, q[i]);
      f.product = where(better, product, f.product), f.square = where(better, square, f.square);
    }
    if (!moved) break;
  }
  return f.scale();
}

// Q3_K's levels -4 to 3, of which q gets 4 more, without importances.
static vf descended_scale(const vf* x, const vf* w, int n, vi* q) {
  vf magnitude;
  const vf inverse = -4.0f / extreme(x, n, magnitude);
  const vi zero = magnitude < nothing;
  const vf scale = descended(x, w, n, inverse, false, q, [](vi l) { return limited(l, -4, 3); });
  for (int i = 0; i < n; i++) q[i] = (q[i] + 4) & ~zero;
  return where(zero, vf{}, scale);
}

// How many scales a search with a least value tries, and by what error.
struct Tries {
  float first, step;
  int count;
  bool magnitudes = false;  // instead of squares
};
constexpr Tries of_importance = {-0.9f, 0.05f, 36};

// Levels 0 to `top` above a least value, which is 0 or less; `below` becomes its magnitude.
static vf least_scale(const vf* x, const vf* w, int n, int top, Tries tries, vi* q, vf& below) {
  vf least = x[0], high = x[0], weights = w[0], sum = w[0] * x[0];
  for (int i = 1; i < n; i++) {
    least = where(x[i] < least, x[i], least), high = where(x[i] > high, x[i], high);
    weights += w[i], sum += w[i] * x[i];
  }
  least = where(least > 0.0f, vf{}, least);
  const vi flat = high <= least;
  const auto error = [&](const vi* level, vf scale, vf bottom) {
    vf total = {};
    for (int i = 0; i < n; i++) {
      const vf off = scale * number(level[i]) + bottom - x[i];
      total += w[i] * (tries.magnitudes ? absolute(off) : off * off);
    }
    return total;
  };
  vf inverse = float(top) / (high - least), scale = 1.0f / inverse;
  for (int i = 0; i < n; i++) q[i] = limited(nearest(inverse * (x[i] - least)), 0, top) & ~flat;
  vf best = error(q, scale, least);
  vi level[32];
  for (int step = 0; step <= tries.count; step++) {
    inverse = (tries.first + tries.step * step + top) / (high - least);
    vf levels = {}, squares = {}, products = {};
    for (int i = 0; i < n; i++) {
      level[i] = limited(nearest(inverse * (x[i] - least)), 0, top);
      const vf l = number(level[i]), weighed = w[i] * l;
      levels += weighed, squares += weighed * l, products += weighed * x[i];
    }
    const vf spread = weights * squares - levels * levels;
    vf now = (weights * products - sum * levels) / spread;
    vf bottom = (squares * sum - levels * products) / spread;
    const vi above = bottom > 0.0f;
    bottom = where(above, vf{}, bottom), now = where(above, products / squares, now);
    const vf off = error(level, now, bottom);
    const vi better = (spread > 0.0f) & (off < best) & ~flat;
    if (!any(better)) continue;
    for (int i = 0; i < n; i++) q[i] = select(better, level[i], q[i]);
    best = where(better, off, best), scale = where(better, now, scale);
    least = where(better, bottom, least);
  }
  below = -least;
  return where(flat, vf{}, scale);
}

// Scales or least values of a block's groups as levels 0 to `top` (make_qp_quants).
static vf positive_scale(const vf* x, const vf* w, int n, int top, vi* q) {
  vf high = {};
  for (int i = 0; i < n; i++) high = where(high > x[i], high, x[i]);
  const vi zero = high < nothing;
  vf inverse = float(top) / high, best = {};
  const auto error = [&](vf over) {
    const vf scale = 1.0f / over;
    vf total = {};
    for (int i = 0; i < n; i++) {
      const vf off = x[i] - scale * number(limited(nearest(over * x[i]), INT32_MIN, top));
      total += w[i] * off * off;
    }
    return total;
  };
  best = error(inverse);
  for (int step = -4; step <= 4; step++) {
    if (step == 0) continue;
    const vf over = (0.1f * step + top) / high, off = error(over);
    const vi better = off < best;
    best = where(better, off, best), inverse = where(better, over, inverse);
  }
  const vf scale =
      descended(x, w, n, inverse, true, q, [&](vi l) { return limited(l, INT32_MIN, top); });
  for (int i = 0; i < n; i++) q[i] &= ~zero;
  return where(zero, vf{}, scale);
}

// The same without importances: the largest becomes the highest level.
static vf largest_scale(const vf* x, int n, int top, vi* q) {
  vf high = {};
  for (int i = 0; i < n; i++) high = where(x[i] > high, x[i], high);
  const vf inverse = where(high > 0.0f, float(top) / high, vf{});
  for (int i = 0; i < n; i++) q[i] = limited(nearest(inverse * x[i]), 0, top);
  return high / float(top);
}

}  // namespace aleator::ALEATOR_ISA
