#include "models/quantise.hpp"

#include "layers/block_bytes.hpp"
#include "layers/exponential.hpp"
#include "models/scale_searches.hpp"

namespace aleator::ALEATOR_ISA {

// As many blocks as there are lanes: their elements and levels one after the other, a block a lane.
struct Blocks256 {
  vf x[most], importance[most];
  vi q[most];
  vf scales[16], below[16];
  vi scale_levels[16] = {}, least_levels[16] = {};
  vf d = {}, dmin = {};

  // A group's elements count by the squares of values about as large as those of its block.
  void weigh(int first, int n, vf spread, vf* w) const {
    for (int i = 0; i < n; i++)
      w[i] = importance[first + i] * root(spread + x[first + i] * x[first + i]);
  }
  vf squares(int first, int n) const {
    vf total = {};
    for (int i = 0; i < n; i++) total += x[first + i] * x[first + i];
    return total;
  }

  // Q2_K, Q4_K and Q5_K: groups of `size` with levels 0 to `top` above a least value, which are
  // stored as levels 0 to `highest` of d and dmin.
  void with_least(int size, int top, int highest, Tries plain, bool weighed) {
    const int groups = most / size;
    const vf spread = (size == 16 ? 1.0f : 2.0f) * squares(0, most) / float(most);
    vf sums[16];
    for (int g = 0; g < groups; g++) {
      const vf* group = x + g * size;
      vf w[32];
      if (weighed) {
        weigh(g * size, size, spread, w);
      } else {
        const vf mean = size == 16 ? vf{} : root(squares(g * size, size) / float(size));
        for (int i = 0; i < size; i++) w[i] = mean + absolute(group[i]);
      }
      sums[g] = vf{};
      for (int i = 0; i < size; i++) sums[g] += w[i];
      scales[g] =
          least_scale(group, w, size, top, weighed ? of_importance : plain, q + g * size, below[g]);
    }
    const auto scale_of = [&](const vf* values, vi* levels) {
      return half(weighed ? positive_scale(values, sums, groups, highest, levels)
                          : largest_scale(values, groups, highest, levels));
    };
    d = scale_of(scales, scale_levels), dmin = scale_of(below, least_levels);
    for (int g = 0; g < groups; g++) {
      const vf scale = d * number(scale_levels[g]), shift = dmin * number(least_levels[g]);
      requantise(g * size, size, scale, shift, 0, top);
    }
  }

  // Q3_K and Q6_K: groups of 16 with levels -levels to levels - 1, whose scales are stored as
  // levels -highest to highest - 1 of d.
  void without_least(int levels, int highest, bool weighed) {
    vf sums[16];
    const vf spread = 2.0f * squares(0, most) / float(most);
    for (int g = 0; g < 16; g++) {
      const vf* group = x + g * 16;
      vf w[16];
      if (weighed && levels == 4)
        weigh(g * 16, 16, spread, w);
      else
        for (int i = 0; i < 16; i++) w[i] = weighed ? importance[g * 16 + i] : group[i] * group[i];
      sums[g] = vf{};
      for (int i = 0; i < 16; i++) sums[g] += w[i];
      scales[g] = weighed || levels != 4 ? signed_scale(group, w, 16, levels, q + g * 16)
                                         : descended_scale(group, w, 16, q + g * 16);
    }
    if (weighed && levels == 4) {
      d = half(signed_scale(scales, sums, 16, highest, scale_levels));
    } else {
      vf magnitude;
      const vf top = extreme(scales, 16, magnitude), inverse = float(-highest) / top;
      const vi zero = magnitude < (levels == 4 ? 0x1p-149f : nothing);
      d = half(where(zero, vf{}, 1.0f / inverse));
      // Of a block of zeros all bytes are 0; Q6_K keeps scales as they are, Q3_K adds 32.
      const vi none = (levels == 4 ? 0 : highest) - vi{};
      for (int g = 0; g < 16; g++) {
        const vi level = limited(nearest(inverse * scales[g]), -highest, highest - 1) + highest;
        scale_levels[g] = select(zero, none, level);
      }
      if (levels != 4)
        for (int i = 0; i < most; i++) q[i] &= ~zero;
    }
    for (int g = 0; g < 16; g++)
      requantise(g * 16, 16, d * number(scale_levels[g] - highest), vf{}, levels, 2 * levels - 1);
  }

  // The levels that are nearest with the scales as they are stored; where a scale is 0 they stay.
  void requantise(int first, int n, vf scale, vf shift, int zero, int top) {
    const vi used = scale != 0.0f;
    for (int i = first; i < first + n; i++)
      q[i] = select(used, limited(nearest((x[i] + shift) / scale), -zero, top - zero) + zero, q[i]);
  }
};

// --- rows ---

static void quantise_some(Stored type, bool weighed, Blocks256& b, const vf& spread) {
  switch (type) {
    case Stored::q2_k:
      return b.with_least(16, 3, 15, {-0.5f, 0.1f, 15, true}, weighed);
    case Stored::q4_k:
      return b.with_least(32, 15, 63, {-1.0f, 0.1f, 20}, weighed);
    case Stored::q5_k:
      return b.with_least(32, 31, 63, {-0.5f, 0.1f, 15}, weighed);
    case Stored::q3_k:
      return b.without_least(4, 32, weighed);
    case Stored::q6_k:
      return b.without_least(32, 128, weighed);
    default:
      break;
  }
  vf w[32];  // a block of 32, with importances
  b.weigh(0, 32, spread, w);
  if (type == Stored::q4_0 || type == Stored::q5_0) {
    b.d = signed_scale(b.x, w, 32, type == Stored::q4_0 ? 8 : 16, b.q);
  } else {
    b.d = least_scale(b.x, w, 32, type == Stored::q4_1 ? 15 : 31, of_importance, b.q, b.dmin);
    b.dmin = -b.dmin;
  }
}

void quantise_searched(const float* x, int64_t rows, int64_t n, Stored type,
                       const float* importance, uint8_t* out) {
  const int size = int(block_shape(type).elements), bytes = int(block_shape(type).bytes);
  const int64_t per_row = n / size, blocks = rows * per_row;
  Blocks256 b;
  for (int64_t first = 0; first < blocks; first += lanes) {
    const int count = int(blocks - first < lanes ? blocks - first : lanes);
    vf spread = {};  // of blocks of 32: their row's mean square
    for (int lane = 0; lane < lanes; lane++) {
      const int64_t at = first + (lane < count ? lane : 0);  // the rest repeats the first
      const float* from = x + at * size;
      for (int i = 0; i < size; i++) b.x[i][lane] = from[i];
      if (!importance) continue;
      const float* weight = importance + at % per_row * size;
      for (int i = 0; i < size; i++) b.importance[i][lane] = weight[i];
      if (size == most) continue;
      if (lane > 0 && at % per_row) {
        spread[lane] = spread[lane - 1];
        continue;
      }
      float total = 0;
      const float* row = x + at / per_row * n;
      for (int64_t i = 0; i < n; i++) total += row[i] * row[i];
      spread[lane] = total / float(n);
    }
    quantise_some(type, importance, b, spread);
    for (int lane = 0; lane < count; lane++) {
      uint8_t q[most], scale[16], least[16];
      for (int i = 0; i < size; i++) q[i] = uint8_t(b.q[i][lane]);
      for (int g = 0; g < 16; g++)
        scale[g] = uint8_t(b.scale_levels[g][lane]), least[g] = uint8_t(b.least_levels[g][lane]);
      uint8_t* to = out + (first + lane) * bytes;
      if (size == most)
        put_block(type, q, scale, least, b.d[lane], b.dmin[lane], to);
      else
        put_small(type, q, b.d[lane], b.dmin[lane], to);
    }
  }
}

// The scale is a power of 2: the largest magnitude's, less two.
void quantise_mxfp4(const float* x, int64_t n, uint8_t* out) {
  constexpr int parts = block_elements / lanes;
  for (int64_t at = 0; at < n; at += block_elements, out += 17) {
    float largest = 0;
    for (int i = 0; i < block_elements; i++) largest = std::fmax(largest, std::fabs(x[at + i]));
    // llama.cpp takes the logarithm as float32, which rounds up just below a power of 2.
    const float power = std::floor(float(std::log2(double(largest))));
    const int e = largest > 0 && power > -125 ? int(power) + 125 : 0;
    const float d = std::ldexp(1.0f, e - 128);
    uint8_t q[block_elements];
    for (int k = 0; k < parts; k++) {
      const vf v = load(x + at + k * lanes);
      vf best = absolute(mxfp4_values[0] * d - v);
      vi code = {};
      for (int c = 1; c < 16; c++) {
        const vf off = absolute(mxfp4_values[c] * d - v);
        const vi better = off < best;
        best = where(better, off, best), code = select(better, c - vi{}, code);
      }
      for (int i = 0; i < lanes; i++) q[k * lanes + i] = uint8_t(code[i]);
    }
    *out = uint8_t(e);
    put_nibbles(q, block_elements, block_elements, out + 1);
  }
}

}  // namespace aleator::ALEATOR_ISA
