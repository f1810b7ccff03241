#include "samplers/tiled_row.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cache/quantise.hpp"
#include "errors.hpp"

namespace aleator {

void check_probability(float value, int64_t id) {
  if (value < 0 || value > 1)
    throw LogitsError("logits[", id, "]=", value,
                      " is no probability: with input_is_logits=False values must lie in [0, 1]; "
                      "pass input_is_logits=True for logits");
}

void RowTiles::load(const void* data, int64_t n, Dtype dtype, Scan scan) {
  n_vocab_ = n;
  n_tiles_ = (n + tile_size - 1) / tile_size;
  const int64_t whole = n / tile_size;
  tiles_.resize(n_tiles_);
  maxima_.assign((n_tiles_ + 15) / 16 * 16, -infinity);
  state_.assign(n_tiles_, 0);
  copies_.resize(n_tiles_ * tile_size);  // reserved whole: pointers into it stay valid
  irregular_.resize(n_tiles_);
  const float* source = static_cast<const float*>(data);
  if (dtype == Dtype::f32) {
    if (whole) scan(source, whole, tiles_.data(), maxima_.data(), irregular_.data());
  } else {
    widened_.resize(n);
    source = widened_.data();
    // In pieces, so that the scan finds them in the cache.
    for (int64_t t = 0; t < n_tiles_; t += 32) {
      const int64_t from = t * tile_size, to = std::min(n, (t + 32) * tile_size);
      widen_row_(static_cast<const uint8_t*>(data) + 2 * from, dtype, to - from, &widened_[from]);
      if (const int64_t tiles = (to - from) / tile_size)
        scan(source + from, tiles, &tiles_[t], &maxima_[t], &irregular_[t]);
    }
  }
  if (whole < n_tiles_) {  // the rest, padded with masked tokens to a whole tile
    float* rest = copies_.data() + whole * tile_size;
    std::fill(std::copy(source + whole * tile_size, source + n, rest), rest + tile_size, -infinity);
    state_[whole] = 1;
    scan(rest, 1, &tiles_[whole], &maxima_[whole], &irregular_[whole]);
  }
}

float* RowTiles::own_tile(int64_t tile) {
  float* copy = copies_.data() + tile * tile_size;
  if (!state_[tile]) {
    std::memcpy(copy, tiles_[tile], tile_size * sizeof(float));
    tiles_[tile] = copy;
    state_[tile] = 1;
  }
  return copy;
}

void RowTiles::mask_tiles(std::span<const uint32_t> words) {
  constexpr int words_per_tile = tile_size / 32;
  for (int64_t t = 0; t < n_tiles_; ++t) {  // only tiles that lose a token are copied
    bool changed = false;
    for (int64_t i = t * words_per_tile; i < (t + 1) * words_per_tile; ++i) {
      uint32_t gone = i < std::ssize(words) ? ~words[i] : ~0u;
      if (!gone) continue;
      float* x = own_tile(t) + i % words_per_tile * 32;
      for (; gone; gone &= gone - 1) x[std::countr_zero(gone)] = -infinity;
      changed = true;
    }
    if (changed) tile_scan_(tiles_[t], 1, &tiles_[t], &maxima_[t], &irregular_[t]);
  }
}

}  // namespace aleator
