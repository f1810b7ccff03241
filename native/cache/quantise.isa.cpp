#include "cache/quantise.hpp"

#include <cmath>

#include "layers/block_bytes.hpp"
#include "layers/blocks.hpp"
#include "layers/exponential.hpp"

namespace aleator::ALEATOR_ISA {

constexpr int parts = block_elements / lanes;

static inline float highest(vf v) {
  float m = v[0];
  for (int i = 1; i < lanes; i++) m = v[i] > m ? v[i] : m;
  return m;
}
static inline float lowest(vf v) {
  float m = v[0];
  for (int i = 1; i < lanes; i++) m = v[i] < m ? v[i] : m;
  return m;
}
// A number outside [low, high] becomes the nearer of them, a NaN becomes low.
static inline vf clamped(vf x, float low, float high) {
  x = where(x > low, x, splat(low));
  return where(x < high, x, splat(high));
}

struct Block {
  vf v[parts];
  float largest;  // magnitude
  float poison;   // 0, or NaN if something is not finite
  explicit Block(const float* x) {
    vf m = {}, zero = {};
    for (int k = 0; k < parts; k++) {
      v[k] = load(x + k * lanes);
      const vf a = absolute(v[k]);
      m = where(a > m, a, m);
      zero += v[k] * 0.0f;
    }
    largest = highest(m), poison = sum(zero);
  }
};

static void quantise_q8_0(const float* x, uint8_t* p) {
  const Block b(x);
  const float d = b.largest / 127.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
  put_half(b.poison == 0 ? d : b.poison, p);
  for (int k = 0; k < parts; k++) {
    const vf scaled = clamped(b.v[k] * inverse, -127.0f, 127.0f);
    // Half away from zero: the number below 0.5, so that 0.49999997 does not become 1.
    const vi sign = reinterpret<vi>(scaled) & INT32_MIN;
    const vf half = reinterpret<vf>(reinterpret<vi>(splat(0x1.fffffep-2f)) | sign);
    const vi whole = __builtin_convertvector(scaled + half, vi);
    for (int i = 0; i < lanes; i++) p[2 + k * lanes + i] = uint8_t(whole[i]);
  }
}

// The first element of the largest magnitude, with its sign; of zeros +0.
static float extreme(const Block& b, const float* x) {
  for (int i = 0; i < block_elements && b.largest > 0; i++)
    if (std::fabs(x[i]) == b.largest) return x[i];
  return 0;
}

// Integers below 16 as nibbles; of integers below 32 the lower four bits.
static inline void put_nibbles(const vi (&q)[parts], uint8_t* p) {
  for (int k = 0; k < parts / 2; k++) {
    const vi both = (q[k] & 15) | (q[k + parts / 2] & 15) << 4;
    for (int i = 0; i < lanes; i++) p[k * lanes + i] = uint8_t(both[i]);
  }
}
static inline void put_fifth(const vi (&q)[parts], uint8_t* p) {
  uint32_t bits = 0;
  for (int k = 0; k < parts; k++)
    for (int i = 0; i < lanes; i++) bits |= uint32_t(q[k][i] >> 4 & 1) << (k * lanes + i);
  std::memcpy(p, &bits, 4);
}

// Signed integers of `count` levels: the extreme becomes the lowest of them, whatever its sign.
static float signed_levels(const float* x, int count, vi (&q)[parts]) {
  const Block b(x);
  const float middle = float(count / 2), d = extreme(b, x) / -middle;
  const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
  for (int k = 0; k < parts; k++)
    q[k] = __builtin_convertvector(
        clamped(b.v[k] * inverse + (middle + 0.5f), 0.0f, float(count - 1)), vi);
  return b.poison == 0 ? d : b.poison;
}

// Integers of `count` levels from the least element up.
static float levels_from_least(const float* x, int count, vi (&q)[parts], float& least) {
  const Block b(x);
  vf low = b.v[0], high = b.v[0];
  for (int k = 1; k < parts; k++) {
    low = where(b.v[k] < low, b.v[k], low);
    high = where(b.v[k] > high, b.v[k], high);
  }
  least = lowest(low);
  const float most = highest(high);
  if (least == 0)  // of zeros the first one counts, whose sign is stored
    for (int i = 0; i < block_elements; i++)
      if (x[i] == 0) {
        least = x[i];
        break;
      }
  const float d = most == least ? 0.0f : (most - least) / float(count - 1);
  const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
  for (int k = 0; k < parts; k++)
    q[k] = __builtin_convertvector(
        clamped((b.v[k] - least) * inverse + 0.5f, 0.0f, float(count - 1)), vi);
  if (b.poison != 0) least = b.poison;
  return b.poison == 0 ? d : b.poison;
}

// A block B of nibbles, with their fifth bits and the least element if it keeps these.
template <class B>
static void quantise_nibbles(const float* x, uint8_t* p) {
  vi q[parts];
  if constexpr (B::has_m) {
    float least;
    put_half(levels_from_least(x, B::top + 1, q, least), p);
    put_half(least, p + 2);
  } else {
    put_half(signed_levels(x, B::top + 1, q), p);
  }
  if constexpr (B::fifths_at != 0) put_fifth(q, p + B::fifths_at);
  put_nibbles(q, p + B::nibbles_at);
}

constexpr float nothing = 1e-15f;  // magnitudes below are 0

// The extreme becomes the lowest level; then the scale is chosen anew, so that the squares'
// weighted error is least, with the levels as they are.  Its sums are taken in order, as ggml takes
// them.
static void quantise_iq4_nl(const float* x, uint8_t* p) {
  const Block b(x);
  vi q[parts] = {};
  float d = 0;
  if (b.largest >= nothing) {
    const float inverse = 1.0f / (extreme(b, x) / iq4_nl_values[0]);
    float products[block_elements], squares[block_elements];
    for (int k = 0; k < parts; k++) {
      const vf scaled = b.v[k] * inverse;
      for (int level = 1; level < 16; level++)  // comparisons are -1 where they hold
        q[k] -= scaled - iq4_nl_values[level - 1] >= iq4_nl_values[level] - scaled;
      const vf value = looked_up16(iq4_nl_values, q[k]), weighted = b.v[k] * b.v[k] * value;
      store(products + k * lanes, weighted * b.v[k]);
      store(squares + k * lanes, weighted * value);
    }
    float product = 0, square = 0;
    for (int i = 0; i < block_elements; i++) {
      product += products[i];
      square += squares[i];
    }
    d = product / square;
  }
  put_half(b.poison == 0 ? d : b.poison, p);
  put_nibbles(q, p + BlockIQ4_NL::nibbles_at);
}

static auto quantiser(Stored type) {
  return type == Stored::q4_0     ? quantise_nibbles<BlockQ4_0>
         : type == Stored::q4_1   ? quantise_nibbles<BlockQ4_1>
         : type == Stored::q5_0   ? quantise_nibbles<BlockQ5_0>
         : type == Stored::q5_1   ? quantise_nibbles<BlockQ5_1>
         : type == Stored::iq4_nl ? quantise_iq4_nl
                                  : quantise_q8_0;
}

void quantise_row(const float* x, int64_t n, Stored type, uint8_t* row) {
  const auto quantise = quantiser(type);
  for (int64_t i = 0; i < n; i += block_elements) quantise(x + i, row + stored_bytes(type, i));
}

void widen_row(const uint8_t* row, Stored type, int64_t n, float* x) {
  with_reader(type, [&](auto read) {
    using Read = decltype(read);
    int64_t i = 0;
    for (; i + Read::step <= n; i += Read::step) {
      vf v[Read::step / lanes];
      Read::group(row, i, v);
      for (int k = 0; k < Read::step / lanes; k++) store(x + i + k * lanes, v[k]);
    }
    if constexpr (!Blocks<Read>)  // which fill rows
      for (; i < n; i++) x[i] = Read::one(row, i);
  });
}

}  // namespace aleator::ALEATOR_ISA
