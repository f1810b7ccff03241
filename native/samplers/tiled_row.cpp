#include "samplers/tiled_row.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>

#include "rng/fixed.hpp"

namespace aleator {

namespace {

void check_probability(float value, int64_t id) {
  if (value < 0 || value > 1)
    throw LogitsError("logits[" + std::to_string(id) + "]=" + std::to_string(value) +
                      " is no probability: with input_is_logits=False values must lie in [0, 1]; "
                      "pass input_is_logits=True for logits");
}

}  // namespace

void widen(const void* data, int64_t n, Dtype dtype, float* out) {
  if (dtype == Dtype::f32)
    std::memcpy(out, data, n * sizeof(float));
  else
    (dtype == Dtype::f16 ? widen_f16_ : widen_bf16_)(static_cast<const uint16_t*>(data), n, out);
}

template <typename Values>
void TiledRow<Values>::load(const void* data, int64_t n, Dtype dtype) {
  n_vocab_ = n;
  n_tiles_ = (n + tile_size - 1) / tile_size;
  const int64_t whole = n / tile_size;
  dense_ = true;
  edited_.clear();
  tiles_.resize(n_tiles_);
  maxima_.assign((n_tiles_ + 15) / 16 * 16, -infinity);
  state_.assign(n_tiles_, 0);
  copies_.resize(n_tiles_ * tile_size);  // reserved whole: pointers into it stay valid
  irregular_.resize(n_tiles_);
  const float* source = static_cast<const float*>(data);
  if (dtype == Dtype::f32) {
    if (whole) Values::scan(source, whole, maxima_.data(), irregular_.data());
  } else {
    widened_.resize(n);
    source = widened_.data();
    // In pieces, so that the scan finds them in the cache.
    for (int64_t t = 0; t < n_tiles_; t += 32) {
      const int64_t from = t * tile_size, to = std::min(n, (t + 32) * tile_size);
      widen(static_cast<const uint16_t*>(data) + from, to - from, dtype, widened_.data() + from);
      if (const int64_t tiles = (to - from) / tile_size)
        Values::scan(source + from, tiles, &maxima_[t], &irregular_[t]);
    }
  }
  for (int64_t t = 0; t < whole; ++t) tiles_[t] = source + t * tile_size;
  if (whole < n_tiles_) {  // the rest, padded with masked tokens to a whole tile
    float* rest = copies_.data() + whole * tile_size;
    std::fill(std::copy(source + whole * tile_size, source + n, rest), rest + tile_size, -infinity);
    tiles_[whole] = rest;
    state_[whole] = 1;
    Values::scan(rest, 1, &maxima_[whole], &irregular_[whole]);
  }
  if (std::memchr(irregular_.data(), 1, n_tiles_))
    for (int64_t t = 0; t < n_tiles_; ++t)
      if (irregular_[t]) {
        if constexpr (Values::bounded)
          for (int64_t id = t * tile_size; id < std::min(n, (t + 1) * tile_size); ++id)
            check_probability(tiles_[t][id % tile_size], id);
        own_tile(t);
        state_[t] = 2;
        edited_.push_back(static_cast<int32_t>(t));
      }
  settle();
}

template <typename Values>
float* TiledRow<Values>::own_tile(int64_t tile) {
  float* copy = copies_.data() + tile * tile_size;
  if (!state_[tile]) {
    std::memcpy(copy, tiles_[tile], tile_size * sizeof(float));
    tiles_[tile] = copy;
    state_[tile] = 1;
  }
  return copy;
}

// The value of a token in a dense list, to be written: its tile is copied and marked.
template <typename Values>
float* TiledRow<Values>::own(int32_t id) {
  const int64_t tile = id / tile_size;
  float* z = own_tile(tile) + id % tile_size;
  if (state_[tile] != 2) {
    state_[tile] = 2;
    edited_.push_back(static_cast<int32_t>(tile));
  }
  return z;
}

// Restores the canonical form after values were written: no NaN, masked tokens leave a compact
// list, and with a +inf present only those tokens remain.
template <typename Values>
void TiledRow<Values>::settle() {
  top_ = -infinity;
  mass_ = 0;
  if (dense_) {
    for (const int32_t tile : edited_) {
      float* x = copies_.data() + int64_t{tile} * tile_size;
      for (int i = 0; i < tile_size; ++i) x[i] = std::isnan(x[i]) ? Values::of_nan : x[i] + 0.0f;
      maxima_[tile] = maximum_(x, tile_size);
      state_[tile] = 1;
    }
    edited_.clear();
    top_ = maximum_(maxima_.data(), static_cast<int64_t>(maxima_.size()));
  } else {
    size_t kept = 0;
    for (size_t i = 0; i < ids_.size(); ++i) {
      const float z = values_[i] + 0.0f;
      if (!(z > -infinity)) continue;
      ids_[kept] = ids_[i];
      values_[kept++] = z;
      top_ = std::max(top_, z);
    }
    ids_.resize(kept);
    values_.resize(kept);
  }
  if (top_ == -infinity) nothing_finite();
  if (top_ == infinity) keep_infinite();
}

// +inf tokens are equally likely, so any equal finite logit says the same; 0 keeps the arithmetic
// finite.
template <typename Values>
void TiledRow<Values>::keep_infinite() {
  collect_near(-infinity, spare_ids_, spare_values_);
  size_t kept = 0;
  for (size_t i = 0; i < spare_ids_.size(); ++i)
    if (spare_values_[i] == infinity) spare_ids_[kept++] = spare_ids_[i];
  spare_ids_.resize(kept);
  spare_values_.assign(kept, 0.0f);
  set_compact(spare_ids_, spare_values_);
}

template <typename Values>
void TiledRow<Values>::set_compact(Buffer<int32_t>& ids, Buffer<float>& values) {
  set_compact(ids, values, maximum_(values.data(), static_cast<int64_t>(values.size())));
}

template <typename Values>
void TiledRow<Values>::set_compact(Buffer<int32_t>& ids, Buffer<float>& values, float top) {
  ids_.swap(ids);
  values_.swap(values);
  dense_ = false;
  mass_ = 0;
  top_ = top;
}

template <typename Values>
void TiledRow<Values>::compact() {
  if (!dense_) return;
  collect_near(-infinity, spare_ids_, spare_values_);
  set_compact(spare_ids_, spare_values_);
}

template <typename Values>
const float* TiledRow<Values>::last_tile(int64_t t) const {
  const auto rest = std::copy(values_.begin() + t * tile_size, values_.end(), last_values_);
  std::fill(rest, last_values_ + tile_size, -infinity);
  return last_values_;
}

template <typename Values>
const int32_t* TiledRow<Values>::last_ids(int64_t t) const {
  std::copy(ids_.begin() + t * tile_size, ids_.end(), last_ids_);
  return last_ids_;
}

template <typename Values>
void TiledRow<Values>::find_tiles(float threshold) const {
  found_.resize(n_tiles());
  if (dense_) {
    n_found_ = find_tiles_(maxima_.data(), static_cast<int64_t>(maxima_.size()), measure().origin(),
                           threshold, found_.data());
  } else {
    n_found_ = n_tiles();
    std::iota(found_.begin(), found_.end(), 0);
  }
}

template <typename Values>
void TiledRow<Values>::collect_near(float threshold, Buffer<int32_t>& ids,
                                    Buffer<float>& values) const {
  const float origin = measure().origin();
  find_tiles(threshold);
  const auto from_tile = [=](const float* x, const int32_t* listed, int32_t first, int32_t* to_ids,
                             float* to_values) {
    return collect_(x, listed, first, origin, threshold, to_ids, to_values);
  };
  collect(from_tile, ids, values);
}

template <typename Values>
int32_t TiledRow<Values>::argmax() const {
  if (!dense_) return ids_[std::find(values_.begin(), values_.end(), top_) - values_.begin()];
  const int64_t tile = std::find(maxima_.begin(), maxima_.end(), top_) - maxima_.begin();
  const float* x = tiles_[tile];
  return static_cast<int32_t>(tile * tile_size + (std::find(x, x + tile_size, top_) - x));
}

template <typename Values>
const Buffer<uint64_t>& TiledRow<Values>::weights() {
  compact();
  weights_.resize(ids_.size());
  measure().weigh(values_.data(), static_cast<int64_t>(ids_.size()), weights_.data());
  return weights_;
}

template <typename Values>
uint64_t TiledRow<Values>::mass() {
  if (mass_) return mass_;
  const Values values = measure();
  weigh_tiles([&](const float* x, float most) { return values.mass(x, most); });
  return mass_;
}

template <typename Values>
typename TiledRow<Values>::Drawn TiledRow<Values>::draw(uint64_t u) {
  const uint64_t total = mass();
  auto target = static_cast<uint64_t>(static_cast<u128>(u) * total >> 64);
  int64_t t = 0;
  while (target >= tile_masses_[t]) target -= tile_masses_[t++];
  uint64_t w[tile_size];
  measure().weigh(tile(t), tile_size, w);
  int j = 0;
  while (target >= w[j]) target -= w[j++];
  return {id_at(t * tile_size + j), total, w[j]};
}

template <typename Values>
void TiledRow<Values>::keep_only(int32_t id) {
  const float z = dense_ ? tiles_[id / tile_size][id % tile_size] + 0.0f
                         : values_[std::lower_bound(ids_.begin(), ids_.end(), id) - ids_.begin()];
  spare_ids_.assign(1, id);
  spare_values_.assign(1, z);
  set_compact(spare_ids_, spare_values_);
}

template class TiledRow<LogitValues>;
template class TiledRow<ProbabilityValues>;

}  // namespace aleator
