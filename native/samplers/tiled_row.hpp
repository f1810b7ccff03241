// A row of values, and what is left of it: token ids ascending, with their values.
//
// Dense, as loaded: tiles of 128 values that are read where the caller has them.  A tile that must
// change is copied first, so penalties and biases cost as much as the tokens they touch.  The first
// truncation makes the list compact: ids and values of the survivors only.
//
// Values is LogitValues or ProbabilityValues.  Both the chains and the operator stand on this.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "errors.hpp"
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

enum class Dtype { f32, f16, bf16 };

// Widens n values of the 16-bit types; float32 is copied.
void widen(const void* data, int64_t n, Dtype dtype, float* out);

template <typename Values>
class TiledRow {
 public:
  // Borrows `data` until the next load; float32 is read in place.
  void load(const void* data, int64_t n_vocab, Dtype dtype);

  int64_t n_vocab() const { return n_vocab_; }
  bool dense() const { return dense_; }
  float top() const { return top_; }  // the largest value
  int32_t argmax() const;             // its token, the lowest id among equals
  Values measure() const { return {top_, scale_}; }

  // Dense or compact, the list is tiles; the last one of a compact list is filled up with masked
  // tokens.
  int64_t n_tiles() const {
    return dense_ ? n_tiles_ : (static_cast<int64_t>(ids_.size()) + tile_size - 1) / tile_size;
  }
  const float* tile(int64_t t) const { return dense_ ? tiles_[t] : compact_tile(t); }
  // The largest value of a tile, or more.
  float most_of(int64_t t) const { return dense_ ? maxima_[t] : top_; }

  // What is left, as a list; compact only.
  const Buffer<int32_t>& ids() const { return ids_; }
  const Buffer<float>& values() const { return values_; }
  void compact();
  // Weights of the compact list, valid until the next call.
  const Buffer<uint64_t>& weights();

  uint64_t mass();  // total of the Q40 weights
  // The first token in id order whose cumulative mass exceeds floor(u * mass / 2^64); the mass must
  // not be 0.
  struct Drawn {
    int32_t id;
    uint64_t total, weight;  // of all that is left, and of the token
  };
  Drawn draw(uint64_t u);

  void keep_only(int32_t id);
  template <typename Kept>
  void keep_if(Kept kept);  // by (index); the list must be compact

 protected:
  void settle();
  void set_compact(Buffer<int32_t>& ids, Buffer<float>& values);
  void set_compact(Buffer<int32_t>& ids, Buffer<float>& values, float top);  // the largest of them
  float* own_tile(int64_t tile);
  float* own(int32_t id);

  const int32_t* tile_ids(int64_t t) const { return dense_ ? nullptr : compact_ids(t); }
  int32_t id_at(int64_t index) const { return static_cast<int32_t>(dense_ ? index : ids_[index]); }
  // Fills tile_masses_ and mass_ with what mass_of(values of a tile, the largest of them or more)
  // returns.
  template <typename MassOf>
  void weigh_tiles(MassOf mass_of);
  void find_tiles(float threshold) const;  // those that may reach it, in found_
  template <typename Collect>
  void collect(Collect from_tile, Buffer<int32_t>& ids, Buffer<float>& values) const;
  // The tokens whose values have at least this distance from the origin.
  void collect_near(float threshold, Buffer<int32_t>& ids, Buffer<float>& values) const;

  int64_t n_vocab_ = 0, n_tiles_ = 0;
  bool dense_ = true;
  float top_ = 0, scale_ = weight_scale(1);
  uint64_t mass_ = 0;                // 0 until it is known
  std::vector<const float*> tiles_;  // dense: where each tile is
  std::vector<float> maxima_;        // dense: its maximum; padded with -inf
  std::vector<uint8_t> state_;       // dense: 1 if the tile is our copy, 2 if it was edited as well
  std::vector<uint8_t> irregular_;   // what the scan found: tiles with values that must change
  Buffer<float> widened_, copies_;   // float16 input widened; copied tiles
  std::vector<int32_t> edited_;      // tiles with state 2
  Buffer<int32_t> ids_, spare_ids_;
  Buffer<float> values_, spare_values_;
  Buffer<uint64_t> weights_, tile_masses_;
  mutable Buffer<int32_t> found_;
  mutable int64_t n_found_ = 0;

 private:
  void keep_infinite();
  const float* compact_tile(int64_t t) const {
    return whole(t) ? values_.data() + t * tile_size : last_tile(t);
  }
  const int32_t* compact_ids(int64_t t) const {
    return whole(t) ? ids_.data() + t * tile_size : last_ids(t);
  }
  bool whole(int64_t t) const { return (t + 1) * tile_size <= std::ssize(ids_); }
  const float* last_tile(int64_t t) const;
  const int32_t* last_ids(int64_t t) const;

  mutable float last_values_[tile_size];
  mutable int32_t last_ids_[tile_size];
};

template <typename Values>
template <typename Kept>
void TiledRow<Values>::keep_if(Kept kept) {
  size_t count = 0;
  for (size_t i = 0; i < ids_.size(); ++i)
    if (kept(i)) {
      ids_[count] = ids_[i];
      values_[count++] = values_[i];
    }
  ids_.resize(count);
  values_.resize(count);
  settle();
}

template <typename Values>
template <typename MassOf>
void TiledRow<Values>::weigh_tiles(MassOf mass_of) {
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

// What from_tile(values of a tile, their ids, the first id, ids, values) appends, over the tiles in
// found_.
template <typename Values>
template <typename Collect>
void TiledRow<Values>::collect(Collect from_tile, Buffer<int32_t>& ids,
                               Buffer<float>& values) const {
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

extern template class TiledRow<LogitValues>;
extern template class TiledRow<ProbabilityValues>;

}  // namespace aleator
