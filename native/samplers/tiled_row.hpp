// A row of values, and what is left of it: token ids ascending, with their values.
//
// Dense, as loaded: tiles of 128 values that are read where the caller has them.  A tile that must
// change is copied first, so penalties and biases cost as much as the tokens they touch.  The first
// truncation makes the list compact: ids and values of the survivors only.
//
// Values is LogitValues or ProbabilityValues.  Both the chains and the operator stand on this.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "layers/stored.hpp"
#include "rng/fixed.hpp"
#include "samplers/values.hpp"

namespace aleator {

// A std::vector whose resize() leaves new elements uninitialised: what grows is written right away,
// and clearing a row's worth of memory first would cost as much as reading the row.
template <typename T>
struct Uninitialised : std::allocator<T> {
  template <typename U>
  struct rebind {
    using other = Uninitialised<U>;
  };
  template <typename U>
  void construct(U* at) noexcept {
    ::new (static_cast<void*>(at)) U;
  }
  template <typename U, typename... Args>
  void construct(U* at, Args&&... args) {
    ::new (static_cast<void*>(at)) U(std::forward<Args>(args)...);
  }
};

template <typename T>
using Buffer = std::vector<T, Uninitialised<T>>;

using Dtype = Stored;  // f32, f16 or bf16

// Throws if a value is outside [0, 1].
void check_probability(float value, int64_t id);

// The tiles of a row as loaded, which are copied where they change.
class RowTiles {
 protected:
  using Scan = void (*)(const float* x, int64_t n_tiles, const float** tiles, float* maxima,
                        uint8_t* irregular);
  void load(const void* data, int64_t n_vocab, Dtype dtype, Scan scan);
  float* own_tile(int64_t tile);
  // Calls change(tile) for the tiles that the scan found, of which most rows have none.
  template <typename F>
  void each_irregular(F change) {
    const uint8_t *begin = irregular_.data(), *end = begin + n_tiles_, *at = begin;
    for (; (at = static_cast<const uint8_t*>(std::memchr(at, 1, end - at))); ++at)
      change(at - begin);
  }
  // Masks the tokens whose bit is not set, 32 a word, and those past the end, of tiles of logits.
  void mask_tiles(std::span<const uint32_t> words);

  int64_t n_vocab_ = 0, n_tiles_ = 0;
  std::vector<const float*> tiles_;  // where each tile is
  std::vector<float> maxima_;        // its maximum; padded with -inf
  std::vector<uint8_t> state_;  // 1 if the tile is our copy, 2 if TiledRow has edited it as well
  std::vector<uint8_t> irregular_;  // what the scan found: tiles with values that must change
  Buffer<float> widened_, copies_;  // float16 input widened; copied tiles
};

template <typename Values>
class TiledRow : protected RowTiles {
 public:
  // Borrows `data` until the next load; float32 is read in place.
  void load(const void* data, int64_t n, Dtype dtype) {
    dense_ = true;
    edited_.clear();
    RowTiles::load(data, n, dtype, Values::scan);
    each_irregular([&](int64_t t) {
      if constexpr (Values::bounded)
        for (int64_t id = t * tile_size; id < std::min(n, (t + 1) * tile_size); ++id)
          check_probability(tiles_[t][id % tile_size], id);
      own_tile(t);
      state_[t] = 2;
      edited_.push_back(int32_t(t));
    });
    settle();
  }

  int64_t n_vocab() const { return n_vocab_; }
  bool dense() const { return dense_; }
  float top() const { return top_; }  // the largest value
  // Its token, the lowest id among equals.
  int32_t argmax() const {
    if (!dense_) return ids_[std::find(values_.begin(), values_.end(), top_) - values_.begin()];
    const int64_t tile = std::find(maxima_.begin(), maxima_.end(), top_) - maxima_.begin();
    const float* x = tiles_[tile];
    return int32_t(tile * tile_size + (std::find(x, x + tile_size, top_) - x));
  }

  Values measure() const { return {top_, scale_}; }

  // Dense or compact, the list is tiles; the last one of a compact list is filled up with masked
  // tokens.
  int64_t n_tiles() const {
    return dense_ ? n_tiles_ : (int64_t(ids_.size()) + tile_size - 1) / tile_size;
  }
  const float* tile(int64_t t) const { return dense_ ? tiles_[t] : compact_tile(t); }
  // The ids of its elements; null in a dense list, where they count on.
  const int32_t* tile_ids(int64_t t) const { return dense_ ? nullptr : compact_ids(t); }
  int32_t id_at(int64_t index) const { return int32_t(dense_ ? index : ids_[index]); }
  // The largest value of a tile, or more.
  float most_of(int64_t t) const { return dense_ ? maxima_[t] : top_; }

  // What is left, as a list; compact only.
  const Buffer<int32_t>& ids() const { return ids_; }
  const Buffer<float>& values() const { return values_; }
  void compact() {
    if (!dense_) return;
    collect_near(-infinity, spare_ids_, spare_values_);
    set_compact(spare_ids_, spare_values_);
  }

  // Weights of the compact list, valid until the next call.
  const Buffer<uint64_t>& weights() {
    compact();
    weights_.resize(ids_.size());
    measure().weigh(values_.data(), int64_t(ids_.size()), weights_.data());
    return weights_;
  }

  // Total of the Q40 weights.
  uint64_t mass() {
    if (mass_) return mass_;
    const Values values = measure();
    weigh_tiles([&](const float* x, float most) { return values.mass(x, most); });
    return mass_;
  }

  // The first token in id order whose cumulative mass exceeds floor(u * mass / 2^64); the mass must
  // not be 0.
  struct Drawn {
    int32_t id;
    uint64_t total, weight;  // of all that is left, and of the token
  };
  Drawn draw(uint64_t u) {
    const uint64_t total = mass();
    auto target = uint64_t(static_cast<u128>(u) * total >> 64);
    int64_t t = 0;
    while (target >= tile_masses_[t]) target -= tile_masses_[t++];
    uint64_t w[tile_size];
    measure().weigh(tile(t), tile_size, w);
    int j = 0;
    while (target >= w[j]) target -= w[j++];
    return {id_at(t * tile_size + j), total, w[j]};
  }

  void keep_only(int32_t id) {
    const float z = dense_ ? tiles_[id / tile_size][id % tile_size] + 0.0f
                           : values_[std::lower_bound(ids_.begin(), ids_.end(), id) - ids_.begin()];
    spare_ids_.assign(1, id);
    spare_values_.assign(1, z);
    set_compact(spare_ids_, spare_values_);
  }

  // By (index); the list must be compact.
  template <typename Kept>
  void keep_if(Kept kept) {
    retain(ids_, values_, kept);
    settle();
  }

 protected:
  // Restores the canonical form after values were written: no NaN, masked tokens leave a compact
  // list, and with a +inf present only those tokens remain.
  void settle() {
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
      top_ = maximum_(maxima_.data(), int64_t(maxima_.size()));
    } else {
      size_t count = 0;  // not by retain(), which would read and write each value twice
      for (size_t i = 0; i < ids_.size(); ++i) {
        const float z = values_[i] + 0.0f;
        if (!(z > -infinity)) continue;
        ids_[count] = ids_[i];
        values_[count++] = z;
        top_ = std::max(top_, z);
      }
      ids_.resize(count);
      values_.resize(count);
    }
    if (top_ == -infinity) nothing_finite();
    if (top_ == infinity) keep_infinite();
  }

  void set_compact(Buffer<int32_t>& ids, Buffer<float>& values) {
    set_compact(ids, values, maximum_(values.data(), int64_t(values.size())));
  }
  // `top`: the largest of them.
  void set_compact(Buffer<int32_t>& ids, Buffer<float>& values, float top) {
    ids_.swap(ids);
    values_.swap(values);
    dense_ = false;
    mass_ = 0;
    top_ = top;
  }

  // Those by (index) stay in a list.
  template <typename Kept>
  static void retain(Buffer<int32_t>& ids, Buffer<float>& values, Kept kept) {
    size_t count = 0;
    for (size_t i = 0; i < ids.size(); ++i)
      if (kept(i)) {
        ids[count] = ids[i];
        values[count++] = values[i];
      }
    ids.resize(count);
    values.resize(count);
  }

  // The value of a token in a dense list, to be written: its tile is copied and marked.
  float* own(int32_t id) {
    const int64_t tile = id / tile_size;
    float* z = own_tile(tile) + id % tile_size;
    if (state_[tile] != 2) {
      state_[tile] = 2;
      edited_.push_back(int32_t(tile));
    }
    return z;
  }

  // Fills tile_masses_ and mass_ with what mass_of(values of a tile, the largest of them or more)
  // returns.
  template <typename MassOf>
  void weigh_tiles(MassOf mass_of) {
    const int64_t n = n_tiles();
    tile_masses_.resize(n);
    uint64_t* masses = tile_masses_.data();
    uint64_t sum = 0;
    if (dense_) {
      const float *const *tiles = tiles_.data(), *maxima = maxima_.data();
      for (int64_t t = 0; t < n; ++t) sum += masses[t] = mass_of(tiles[t], maxima[t]);
    } else {
      for (int64_t t = 0; t < n; ++t) sum += masses[t] = mass_of(compact_tile(t), top_);
    }
    mass_ = sum;
  }

  // Those that may reach it, in found_.
  void find_tiles(float threshold) const {
    found_.resize(n_tiles());
    if (dense_) {
      n_found_ = find_tiles_(maxima_.data(), int64_t(maxima_.size()), measure().origin(), threshold,
                             found_.data());
    } else {
      n_found_ = n_tiles();
      std::iota(found_.begin(), found_.end(), 0);
    }
  }

  // What from_tile(values of a tile, their ids, the first id, ids, values) appends, over the tiles
  // in found_.
  template <typename Collect>
  void collect(Collect from_tile, Buffer<int32_t>& ids, Buffer<float>& values) const {
    ids.resize(n_found_ * tile_size);
    values.resize(n_found_ * tile_size);
    int64_t count = 0;
    for (int64_t i = 0; i < n_found_; ++i) {
      const int32_t t = found_[i];
      count +=
          from_tile(tile(t), tile_ids(t), t * tile_size, ids.data() + count, values.data() + count);
    }
    ids.resize(count);
    values.resize(count);
  }

  // The tokens whose values have at least this distance from the origin.
  void collect_near(float threshold, Buffer<int32_t>& ids, Buffer<float>& values) const {
    const float origin = measure().origin();
    find_tiles(threshold);
    const auto from_tile = [=](const float* x, const int32_t* listed, int32_t first,
                               int32_t* to_ids, float* to_values) {
      return collect_(x, listed, first, origin, threshold, to_ids, to_values);
    };
    collect(from_tile, ids, values);
  }

  bool dense_ = true;
  float top_ = 0, scale_ = weight_scale(1);
  uint64_t mass_ = 0;            // 0 until it is known
  std::vector<int32_t> edited_;  // tiles with state 2
  Buffer<int32_t> ids_, spare_ids_;
  Buffer<float> values_, spare_values_;
  Buffer<uint64_t> weights_, tile_masses_;
  mutable Buffer<int32_t> found_;
  mutable int64_t n_found_ = 0;

 private:
  // +inf tokens are equally likely, so any equal finite logit says the same; 0 keeps the arithmetic
  // finite.
  void keep_infinite() {
    collect_near(-infinity, spare_ids_, spare_values_);
    retain(spare_ids_, spare_values_, [&](size_t i) { return spare_values_[i] == infinity; });
    spare_values_.assign(spare_ids_.size(), 0.0f);
    set_compact(spare_ids_, spare_values_);
  }

  const float* compact_tile(int64_t t) const {
    return tile_of(values_, t, -infinity, last_values_);
  }
  const int32_t* compact_ids(int64_t t) const { return tile_of(ids_, t, 0, last_ids_); }
  // A tile of a compact list, the last one filled up in `last`.
  template <typename T>
  static const T* tile_of(const Buffer<T>& list, int64_t t, T filling, T* last) {
    const auto begin = list.begin() + t * tile_size;
    if ((t + 1) * tile_size <= std::ssize(list)) return &*begin;
    std::fill(std::copy(begin, list.end(), last), last + tile_size, filling);
    return last;
  }

  mutable float last_values_[tile_size];
  mutable int32_t last_ids_[tile_size];
};

}  // namespace aleator
