// Contract: docs/numerics.md.  Plain loops, which the compiler vectorises for each instruction set;
// only compaction, which it cannot, is written with intrinsics.
#include <bit>

#include "rng/philox.hpp"
#include "samplers/weights.hpp"

namespace aleator::ALEATOR_ISA {

void tile_scan(const float* x, int64_t n_tiles, const float** tiles, float* maxima,
               uint8_t* has_nan) {
  for (int64_t tile = 0; tile < n_tiles; ++tile, x += tile_size) {
    tiles[tile] = x;
    Floats best0 = Floats{} + minus_infinity, best1 = best0;
#if defined(__AVX512F__)
    unsigned nan = 0;
#else
    Ints nan{};
#endif
    for (int i = 0; i < tile_size; i += 2 * lanes) {
      const Floats v = load(x + i), w = load(x + i + lanes);
      best0 = larger(v, best0);
      best1 = larger(w, best1);
#if defined(__AVX512F__)
      nan |= _mm512_cmp_ps_mask(v, w, _CMP_UNORD_Q);
#else
      nan |= unordered(v, w);
#endif
    }
    maxima[tile] = largest(larger(best0, best1)) + 0.0f;  // -0 becomes +0
#if defined(__AVX512F__)
    has_nan[tile] = nan != 0;
#else
    has_nan[tile] = mask_of(nan) != 0;
#endif
  }
}

void group_maxima(const float* x, float* maxima) {
  for (int g = 0; g < groups_per_tile; ++g) {
    float best = x[g * 8];
    for (int i = 1; i < 8; ++i) best = x[g * 8 + i] > best ? x[g * 8 + i] : best;
    maxima[g] = best;
  }
}

uint64_t tile_mass(const float* x, float most, float zmax, float scale) {
  if ((most - zmax) * scale <= light_bits) {
    Longs sum{};
    for (int i = 0; i < tile_size; i += abreast * lanes)
      sum += sum_light(power(bits_of(load_side(x + i), zmax, scale)));
    return sum_of(sum);
  }
  Ints high{}, low{};  // at most 2^20 in each of 128: nothing overflows
  for (int i = 0; i < tile_size; i += abreast * lanes) {
    const Side weights = power(bits_of(load_side(x + i), zmax, scale));
    for (const Floats w : weights.of) {
      const Weight parts = split(w);
      high += parts.high;
      low += parts.low;
    }
  }
  return (uint64_t(sum_of(high)) << 20) + uint64_t(sum_of(low));
}

void add_entropy(const float* const* tiles, const float* maxima, int64_t n, float second,
                 float scale, EntropySums* sums) {
  Longs high_weights{}, weights{}, high_bits{}, bits{};
  for (int64_t t = 0; t < n; ++t) {
    const float* x = tiles[t];
    const float most = (maxima[t] - second) * scale;
    if (most < no_entropy_bits) continue;
    if (most <= light_entropy_bits) {
      for (int i = 0; i < tile_size; i += abreast * lanes) {
        const Side depth = bits_of(load_side(x + i), second, scale), w = power(depth);
        weights += sum_light(w);
        Words four{};
        for (int j = 0; j < abreast; ++j) four -= whole(w.of[j] * depth.of[j]);
        bits += widened(four);
      }
      continue;
    }
    Ints high{}, low{}, high_depth{}, low_depth{};
    const auto add_depth = [&](Floats weighted) {
      const Weight parts = split(weighted);
      high_depth -= parts.high;
      low_depth -= parts.low;
    };
    if (most <= light_bits) {
      for (int i = 0; i < tile_size; i += abreast * lanes) {
        const Side depth = bits_of(load_side(x + i), second, scale), w = power(depth);
        weights += sum_light(w);
        for (int j = 0; j < abreast; ++j) add_depth(w.of[j] * depth.of[j]);
      }
    } else {
      for (int i = 0; i < tile_size; i += abreast * lanes) {
        Side v = load_side(x + i);
        if (maxima[t] > second)  // the top ones count apart; `most` may be 0 or NaN at scale 0
          for (Floats& z : v.of) z = z > second ? Floats{} + minus_infinity : z;
        const Side depth = bits_of(v, second, scale), w = power(depth);
        for (int j = 0; j < abreast; ++j) {
          const Weight own = split(w.of[j]);
          high += own.high;
          low += own.low;
          add_depth(w.of[j] * depth.of[j]);
        }
      }
    }
    high_weights += widened(high);
    weights += widened(low);
    high_bits += widened(high_depth);
    bits += widened(low_depth);
  }
  sums->weight += (sum_of(high_weights) << 20) + sum_of(weights);
  sums->bits += (sum_of(high_bits) << 20) + sum_of(bits);
}

void add_squares(const float* x, float most, float zmax, float scale, SquareSums* sums) {
  Ints high_weights{}, low_weights{};
  Longs weights{}, high{}, middle{}, low{};  // squares at most 2^56 in each of 128
  if ((most - zmax) * scale <= light_squares_bits) {
    for (int i = 0; i < tile_size; i += abreast * lanes) {
      const Side here = power(bits_of(load_side(x + i), zmax, scale));
      weights += sum_light(here);
      for (const Floats w : here.of) low += pair_products(whole(w), whole(w));
    }
  } else {
    for (int i = 0; i < tile_size; i += abreast * lanes) {
      const Side here = power(bits_of(load_side(x + i), zmax, scale));
      for (const Floats w : here.of) {
        const Weight parts = split(w);
        high_weights += parts.high;
        low_weights += parts.low;
        high += pair_products(parts.high, parts.high);
        middle += pair_products(parts.high, parts.low);
        low += pair_products(parts.low, parts.low);
      }
    }
  }
  using Wide = unsigned __int128;
  weights += widened(low_weights);
  sums->weight += (uint64_t(sum_of(high_weights)) << 20) + sum_of(weights);
  sums->squares += (Wide{sum_of(high)} << 40) + (Wide{sum_of(middle)} << 21) + sum_of(low);
}

float least_finite(const float* x) {
  Floats best = Floats{} + minus_infinity;
  for (int i = 0; i < tile_size; i += lanes) {
    const Floats v = load(x + i);
    best = larger(v > minus_infinity ? -v : v, best);
  }
  return -largest(best);
}

float below_top(const float* x, int64_t n, float top, int64_t* count) {
  Ints tops{};
  Floats below = Floats{} + minus_infinity;
  for (int64_t i = 0; i < n; i += lanes) {
    const Floats v = load(x + i);
    tops -= v == top;
    below = larger(v < top ? v : Floats{} + minus_infinity, below);
  }
  *count += sum_of(tops);
  return largest(below);
}

namespace {

inline void weigh_tile(const float* x, float zmax, float scale, uint64_t* weights) {
  float w[tile_size];
  for (int i = 0; i < tile_size; i += abreast * lanes) {
    const Side here = power(bits_of(load_side(x + i), zmax, scale));
    for (int j = 0; j < abreast; ++j) store(w + i + j * lanes, here.of[j]);
  }
  for (int i = 0; i < tile_size; ++i) weights[i] = rounded_down(w[i]);
}

inline void score_tile(const float* x, float zmax, float scale, int32_t mean, int32_t* scores) {
  for (int i = 0; i < tile_size; i += lanes)
    store(scores + i, score_of(depth_of(bits_of(load(x + i), zmax, scale)), mean));
}

}  // namespace

void weigh(const float* x, int64_t n, float zmax, float scale, uint64_t* weights) {
  fill_by_tiles(x, n, weights,
                [=](const float* tile, uint64_t* w) { weigh_tile(tile, zmax, scale, w); });
}

void score(const float* x, int64_t n, float zmax, float scale, int32_t mean, int32_t* scores) {
  fill_by_tiles(x, n, scores,
                [=](const float* tile, int32_t* s) { score_tile(tile, zmax, scale, mean, s); });
}

void add_bins(const float* x, float zmax, float scale, int32_t mean, uint64_t* bins) {
  uint64_t w[tile_size];
  int32_t s[tile_size];
  weigh_tile(x, zmax, scale, w);
  score_tile(x, zmax, scale, mean, s);
  for (int i = 0; i < tile_size; ++i) bins[s[i] >> bin_shift] += w[i];
}

float maximum(const float* x, int64_t n) {
  Floats best0 = Floats{} + minus_infinity, best1 = best0;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    best0 = larger(load(x + i), best0);
    best1 = larger(load(x + i + lanes), best1);
  }
  float best = largest(larger(best0, best1));
  for (; i < n; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

int64_t count_at_least(const float* x, int64_t n, float bound) {
  int32_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += x[i] >= bound;
  return count;
}

int64_t find_tiles(const float* maxima, int64_t n, float zmax, float threshold, int32_t* tiles) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += lanes) {
    const Floats v = load(maxima + i);
    unsigned found = near_mask(v, zmax, threshold);
    for (; found; found &= found - 1) tiles[count++] = int32_t(i) + std::countr_zero(found);
  }
  return count;
}

void add_moments(const float* x, float zmax, Moments* moments) {
  uint32_t q[tile_size];  // without their sign, 0 for masked tokens; a tile's sum is below 2^28
  Ints sum{}, count{};
  for (int i = 0; i < tile_size; i += lanes) {
    const Floats v = load(x + i);
    const Ints in = v > minus_infinity;
    const Floats distance = larger(v - zmax, Floats{} + contract::sigma_least);
    const Ints rounded = round_magnitude(distance, contract::sigma_unit) & in;
    store(q + i, rounded);
    sum += rounded;
    count -= in;
  }
  uint64_t squares = 0;
  for (int i = 0; i < tile_size; ++i) squares += uint64_t{q[i]} * q[i];
  moments->count += uint64_t(sum_of(count));
  moments->sum -= sum_of(sum);
  moments->squares += squares;
}

int collect(const float* x, const int32_t* listed, int32_t first_id, float zmax, float threshold,
            int32_t* ids, float* logits) {
  return append_tile(x, {listed, first_id}, ids, logits,
                     [=](Floats v) { return near_mask(v, zmax, threshold); });
}

int collect_scored(const float* x, const int32_t* listed, int32_t first_id, float zmax, float scale,
                   int32_t mean, int32_t from, int32_t to, int32_t* ids, float* logits) {
  return append_tile(x, {listed, first_id}, ids, logits, [=](Floats v) {
    return score_mask(v, score_of(depth_of(bits_of(v, zmax, scale)), mean), from, to);
  });
}

int find_at_least(const float* x, float bound, int32_t first_id, int32_t* ids) {
  int count = 0;
  for (int first = 0; first < tile_size; first += 16) {
    unsigned found = 0;
#if defined(__AVX512F__)
    found = _mm512_cmp_ps_mask(_mm512_loadu_ps(x + first), _mm512_set1_ps(bound), _CMP_GE_OQ);
#elif defined(__SSE2__)
    const __m128 least = _mm_set1_ps(bound);
    for (int j = 0; j < 16; j += 4)
      found |= unsigned(_mm_movemask_ps(_mm_cmpge_ps(_mm_loadu_ps(x + first + j), least))) << j;
#else
    for (int j = 0; j < 16; ++j) found |= unsigned(x[first + j] >= bound) << j;
#endif
    for (; found; found &= found - 1) ids[count++] = first_id + first + std::countr_zero(found);
  }
  return count;
}

// E = -2^32 log2(u / 2^64) is at least (2^32 - 1 - h) / ln 2, h the upper word of u: no logarithm
// is needed to see that most tokens lose.
int find_contenders(const float* x, const int32_t* listed, int32_t first_id, float zmax,
                    float scale, const RaceNoise& noise, float bound, int32_t* found) {
  constexpr float below_1_over_ln2 = 1.4426f;  // by more than all roundings here come to
  const Ids ids{listed, first_id};
  int count = 0;
  for (int first = 0; first < tile_size; first += abreast * lanes) {
    const Side weights = power(bits_of(load_side(x + first), zmax, scale));
    for (int j = 0; j < abreast; ++j) {
      const int here = first + j * lanes;
      Words c[4] = {ids.from(here).numbers(), Words{} + uint32_t(noise.position),
                    Words{} + uint32_t(noise.position >> 32), Words{} + noise.stream};
      philox_rounds(
          [&](uint32_t m0, uint32_t m1, uint32_t k0, uint32_t k1) {
            const Words high0 = high_product(c[0], m0), high1 = high_product(c[2], m1);
            const Words low0 = c[0] * m0, low1 = c[2] * m1;
            c[0] = high1 ^ c[1] ^ k0;
            c[1] = low1;
            c[2] = high0 ^ c[3] ^ k1;
            c[3] = low0;
          },
          noise.seed);
      const Floats e = __builtin_convertvector(reinterpret_cast<Ints>(~c[1] >> 1), Floats) * 2.0f;
      unsigned may = mask_of(e * below_1_over_ln2 <= bound * weights.of[j]);
      for (; may; may &= may - 1) found[count++] = here + std::countr_zero(may);
    }
  }
  return count;
}

}  // namespace aleator::ALEATOR_ISA
