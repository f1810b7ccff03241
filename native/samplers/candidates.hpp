// The candidates of one step: token ids and logits, always in ascending order of id.
//
// Dense, as loaded: tiles of 128 logits that are read where the caller has them.  A tile that must
// change is copied first, so penalties and biases cost as much as the tokens they touch.  The first
// truncation makes the list compact: ids and logits of the survivors only.
//
// Canonical form (docs/numerics.md) holds between any two calls: no NaN, no -0, no infinity except
// the -inf of masked tokens, which are not candidates.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "errors.hpp"
#include "samplers/buffer.hpp"
#include "samplers/tiles.hpp"

namespace aleator {

// Floats as integers in the same order.  The argument is never -0 nor NaN.
inline uint32_t ordered(float z) {
  uint32_t b;
  __builtin_memcpy(&b, &z, 4);
  return b & 0x80000000u ? ~b : b | 0x80000000u;
}

inline float from_ordered(uint32_t b) {
  b = b & 0x80000000u ? b & 0x7FFFFFFFu : ~b;
  float z;
  __builtin_memcpy(&z, &b, 4);
  return z;
}

// Larger is earlier in the order: logit descending, then token id ascending.
inline uint64_t order_key(float z, int32_t id) {
  return static_cast<uint64_t>(ordered(z)) << 32 | static_cast<uint32_t>(~id);
}

enum class Dtype { f32, f16, bf16 };

constexpr int64_t max_vocab = int64_t{1} << 20;  // 2^20 weights of at most 2^40 sum to at most 2^60

inline void check_length(int64_t n_logits) {
  if (n_logits < 1)
    throw LogitsError("logits are empty: one value per token of the vocabulary is needed");
  if (n_logits > max_vocab)
    throw LogitsError("logits have " + std::to_string(n_logits) +
                      " values: at most 1,048,576 are supported");
}

class Candidates {
 public:
  // Borrows `data` until the next load; float32 is read in place.
  void load(const void* data, int64_t n_vocab, Dtype dtype);

  int64_t n_vocab() const { return n_vocab_; }
  bool dense() const { return dense_; }
  float top() const { return top_; }  // the largest logit
  int32_t argmax() const;             // its token, the lowest id among equals
  int64_t count() const;              // candidates, masked tokens not counted
  double temperature() const { return temperature_; }
  float scale() const { return weight_scale(temperature_); }

  void multiply_temperature(double factor);  // 1e-5 or less leaves the argmax alone
  void materialise();                        // z = z / T, T = 1

  // A logit to be written; null if the token is masked or not a candidate.  Call settle() after the
  // last.
  float* edit(int32_t id);
  void settle();

  // The survivors of a truncation.  Every kept token must be a candidate; `keep` is never empty.
  void keep_first(int64_t k);                               // the first k in the order
  void keep_near(float threshold, int64_t min_keep);  // z - top >= threshold
  // The shortest prefix of at least this mass: of the order if `mean` is 0, else of the ranking by
  // score, the distance of a depth from the mean, and then the order.
  void keep_mass(uint64_t wanted, int64_t min_keep, int32_t mean = 0);
  void keep_only(int32_t id);
  void become(int32_t id);                       // one token, candidate or not, with logit 1
  void keep_through(uint64_t key);                  // this key and those before it
  bool keep_run(uint64_t bound);                 // false, and nothing changes, if the run is empty
  void remove(const std::vector<int32_t>& ids);  // ascending, not all of them
  template <typename Kept>
  void keep_if(Kept kept);  // by (index); the list must be compact
  // The tokens whose bit is set, 32 a word, none past the end.  False, with the list spoilt, if
  // none is left.
  bool keep_allowed(std::span<const uint32_t> words);

  Moments moments() const;
  uint64_t mass();       // total of the Q40 weights
  int32_t mean_depth();  // mean by weight of the depth, which is -t in Q16, rounded up
  // Selects the first token in id order whose cumulative mass exceeds floor(u * mass / 2^64).
  struct Drawn {
    uint64_t total, weight;  // of all candidates, and of the one selected
  };
  Drawn draw(uint64_t u);

  // The list as such, for samplers that look at every candidate.
  void compact();
  const Buffer<int32_t>& ids() const { return ids_; }      // compact only
  const Buffer<float>& logits() const { return logits_; }  // compact only
  Buffer<float>& edit_all();  // compact and materialised; ends with settle()
  // Weights of the compact list, valid until the next call.
  const Buffer<uint64_t>& weights();

  // The leading run of the order whose weights reach `bound`: it ends before the first candidate
  // that weighs less.  Its tokens by id ascending, and the one that stands last in the order.
  struct Run {
    std::vector<int32_t> ids;
    int32_t last = -1;
  };
  const Run& run(uint64_t bound);
  // The m first of the order, as (key, weight).
  const std::vector<std::pair<uint64_t, uint64_t>>& first(int64_t m);
  // Mass of the row when Softmax saw it, for samplers with mass="full"; 0 if it never did or logits
  // changed.
  uint64_t full_mass() const { return full_mass_; }
  void record_full_mass() { full_mass_ = mass(); }

  // A compact copy of the candidates.
  void list(std::vector<int32_t>& ids, std::vector<float>& logits) const;

  int32_t selected = -1;  // token id, -1 while none is

 private:
  // Part of the list, ids ascending, with weights.
  struct Part {
    Buffer<int32_t> ids;
    Buffer<float> logits;
    Buffer<uint64_t> weights;
    uint64_t key(size_t i) const { return order_key(logits[i], ids[i]); }
  };
  // A place in the ranking of keep_mass.
  struct Ranked {
    int32_t score;
    int32_t id;
    uint64_t key, measure;  // measure: the weight, or 1 where tokens are counted
    bool before(const Ranked& other) const {
      return score != other.score ? score < other.score : key > other.key;
    }
  };
  enum class Measure { mass, count };

  void set_compact(Buffer<int32_t>& ids, Buffer<float>& logits);
  void set_compact(Buffer<int32_t>& ids, Buffer<float>& logits, float top);  // the largest of them
  void weigh_part();
  const Part& near_top(double bits);
  uint64_t first_below(uint64_t bound);
  float* own_tile(int64_t tile);
  float* own(int32_t id);
  float tile_bound(int64_t k);
  void keep_infinite();
  uint64_t key_of(size_t i) const { return order_key(logits_[i], ids_[i]); }
  void filter_from_key(uint64_t key, Buffer<int32_t>& ids, Buffer<float>& logits);

  // Dense or compact, the list is tiles; the last one of a compact list is filled up with masked
  // tokens.
  int64_t n_tiles() const {
    return dense_ ? n_tiles_ : (static_cast<int64_t>(ids_.size()) + tile_size - 1) / tile_size;
  }
  const float* tile(int64_t t) const;
  const int32_t* tile_ids(int64_t t) const;  // null in a dense list
  int32_t id_at(int64_t index) const { return static_cast<int32_t>(dense_ ? index : ids_[index]); }
  void find_tiles(float threshold) const;  // those that may hold z - top >= threshold, in found_
  template <typename Collect>
  void collect(Collect from_tile, Buffer<int32_t>& ids, Buffer<float>& logits) const;
  void collect_near(float threshold, Buffer<int32_t>& ids, Buffer<float>& logits) const;
  void collect_scored(int32_t mean, int32_t from, int32_t to, Buffer<int32_t>& ids,
                      Buffer<float>& logits) const;
  float depth_threshold(int64_t depth) const;

  Ranked end_of_prefix(int32_t mean, uint64_t wanted, Measure measure);
  int find_bin(int32_t mean, int32_t limit, Measure measure, uint64_t wanted, uint64_t* above);
  int find_bin_in_part_of_row(int32_t mean, uint64_t wanted, uint64_t* above);
  void rank_part(int32_t mean, Measure measure, bool one_bin, uint64_t wanted, uint64_t* above);
  Ranked select_ranked(uint64_t above, uint64_t wanted);
  void collect_prefix(int32_t mean, const Ranked& last);

  int64_t n_vocab_ = 0, n_tiles_ = 0;
  bool dense_ = true;
  float top_ = 0;
  double temperature_ = 1;
  uint64_t mass_ = 0;  // 0 until it is known
  uint64_t full_mass_ = 0;
  std::vector<const float*> tiles_;  // dense: where each tile is
  std::vector<float> maxima_;        // dense: its maximum; padded with -inf
  std::vector<uint8_t> state_;       // dense: 1 if the tile is our copy, 2 if it was edited as well
  Buffer<float> widened_, copies_;   // float16 input widened; copied tiles
  std::vector<int32_t> edited_;      // tiles with state 2
  Buffer<int32_t> ids_, spare_ids_;
  Buffer<float> logits_, spare_logits_, groups_;
  Buffer<uint64_t> weights_, tile_masses_, bins_;
  std::vector<uint64_t> keys_;
  std::vector<uint8_t> has_nan_;
  std::vector<std::pair<uint64_t, uint64_t>> pairs_;
  Part part_;
  Run run_;
  std::vector<Ranked> ranking_;
  std::vector<int32_t> excluded_;
  Buffer<int32_t> scores_;
  mutable Buffer<int32_t> found_;
  mutable int64_t n_found_ = 0;
  mutable float last_logits_[tile_size];
  mutable int32_t last_ids_[tile_size];
};

template <typename Kept>
void Candidates::keep_if(Kept kept) {
  size_t count = 0;
  for (size_t i = 0; i < ids_.size(); ++i)
    if (kept(i)) {
      ids_[count] = ids_[i];
      logits_[count++] = logits_[i];
    }
  ids_.resize(count);
  logits_.resize(count);
  settle();
}

}  // namespace aleator
