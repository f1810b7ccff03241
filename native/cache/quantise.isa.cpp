#include "cache/quantise.hpp"

#include <cmath>

#include "layers/lanes.hpp"

namespace aleator::ALEATOR_ISA {

constexpr int parts = block_elements / lanes;

static inline vf absolute(vf x) { return reinterpret<vf>(reinterpret<vi>(x) & 0x7fffffff); }
static inline vf select(vi take_a, vf a, vf b) {
  return reinterpret<vf>((reinterpret<vi>(a) & take_a) | (reinterpret<vi>(b) & ~take_a));
}
static inline float highest(vf v) {
  float m = v[0];
  for (int i = 1; i < lanes; i++) m = v[i] > m ? v[i] : m;
  return m;
}
// A number outside [low, high] becomes the nearer of them, a NaN becomes low.
static inline vf clamped(vf x, float low, float high) {
  x = select(x > low, x, splat(low));
  return select(x < high, x, splat(high));
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
      m = select(a > m, a, m);
      zero += v[k] * 0.0f;
    }
    largest = highest(m), poison = sum(zero);
  }
};

static inline void put_scale(float d, uint8_t* p) {
  const uint16_t h = f16_of_f32(d);
  std::memcpy(p, &h, 2);
}

static void quantise_q8_0(const float* x, uint8_t* p) {
  const Block b(x);
  const float d = b.largest / 127.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
  put_scale(b.poison == 0 ? d : b.poison, p);
  for (int k = 0; k < parts; k++) {
    const vf scaled = clamped(b.v[k] * inverse, -127.0f, 127.0f);
    // Half away from zero: the number below 0.5, so that 0.49999997 does not become 1.
    const vi sign = reinterpret<vi>(scaled) & INT32_MIN;
    const vf half = reinterpret<vf>(reinterpret<vi>(splat(0x1.fffffep-2f)) | sign);
    const vi whole = __builtin_convertvector(scaled + half, vi);
    for (int i = 0; i < lanes; i++) p[2 + k * lanes + i] = uint8_t(whole[i]);
  }
}

static void quantise_q4_0(const float* x, uint8_t* p) {
  const Block b(x);
  float extreme = 0;  // the first of the largest magnitude, with its sign
  for (int i = 0; i < block_elements; i++)
    if (std::fabs(x[i]) == b.largest) {
      extreme = x[i];
      break;
    }
  const float d = extreme / -8.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
  put_scale(b.poison == 0 ? d : b.poison, p);
  vi q[parts];
  for (int k = 0; k < parts; k++)
    q[k] = __builtin_convertvector(clamped(b.v[k] * inverse + 8.5f, 0.0f, 15.0f), vi);
  for (int k = 0; k < parts / 2; k++) {
    const vi both = q[k] | (q[k + parts / 2] << 4);
    for (int i = 0; i < lanes; i++) p[2 + k * lanes + i] = uint8_t(both[i]);
  }
}

void quantise_row(const float* x, int64_t n, Stored type, uint8_t* row) {
  for (int64_t i = 0; i < n; i += block_elements)
    if (type == Stored::q8_0)
      quantise_q8_0(x + i, row + stored_bytes(type, i));
    else
      quantise_q4_0(x + i, row + stored_bytes(type, i));
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
    for (; i < n; i++) x[i] = Read::one(row, i);
  });
}

}  // namespace aleator::ALEATOR_ISA
