// Kernels over tiles of probabilities.  Contract: docs/operator.md.
#include "samplers/vectors.hpp"

namespace aleator::ALEATOR_ISA {

namespace {

// Masked padding, which is below 0, weighs nothing.
inline Floats unit_power(Floats x) { return larger(x, Floats{}) * 0x1p40f; }  // exact

inline Ints depth_of(Floats x, int32_t top) {
  return (top - reinterpret_cast<Ints>(larger(x, Floats{}))) >> unit_depth_shift;
}

inline void weigh_unit_tile(const float* x, uint64_t* weights) {
  float w[tile_size];
  for (int i = 0; i < tile_size; i += lanes) store(w + i, unit_power(load(x + i)));
  for (int i = 0; i < tile_size; ++i) weights[i] = rounded_down(w[i]);
}

}  // namespace

void unit_scan(const float* x, int64_t n_tiles, const float** tiles, float* maxima,
               uint8_t* irregular) {
  for (int64_t tile = 0; tile < n_tiles; ++tile, x += tile_size) {
    tiles[tile] = x;
    Floats best = Floats{} + minus_infinity;
    Ints wrong{};
    for (int i = 0; i < tile_size; i += lanes) {
      const Floats v = load(x + i);
      best = larger(v, best);
      wrong |= ~(v >= 0.0f);  // a NaN too
    }
    const float most = largest(best);
    maxima[tile] = most + 0.0f;  // -0 becomes +0
    irregular[tile] = mask_of(wrong) != 0 || most > 1;
  }
}

void unit_weigh(const float* x, int64_t n, uint64_t* weights) {
  fill_by_tiles(x, n, weights, weigh_unit_tile);
}

uint64_t unit_mass(const float* x) { return sum_of_tile(x, unit_power); }

void unit_score(const float* x, int64_t n, float top, int32_t* scores) {
  const auto bits = std::bit_cast<int32_t>(top);
  fill_by_tiles(x, n, scores, [=](const float* tile, int32_t* s) {
    for (int i = 0; i < tile_size; i += lanes) store(s + i, depth_of(load(tile + i), bits));
  });
}

void unit_add_bins(const float* x, float top, uint64_t* bins) {
  uint64_t w[tile_size];
  int32_t s[tile_size];
  weigh_unit_tile(x, w);
  unit_score(x, tile_size, top, s);
  for (int i = 0; i < tile_size; ++i) bins[s[i] >> bin_shift] += w[i];
}

int unit_collect_scored(const float* x, const int32_t* listed, int32_t first_id, float top,
                        int32_t from, int32_t to, int32_t* ids, float* values) {
  const auto bits = std::bit_cast<int32_t>(top);
  return append_tile(x, {listed, first_id}, ids, values,
                     [=](Floats v) { return score_mask(v, depth_of(v, bits), from, to); });
}

}  // namespace aleator::ALEATOR_ISA
