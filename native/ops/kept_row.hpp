// One row of the operator: what top-k, top-p and min-p keep of it.  Contract: docs/operator.md.
//
// A row is read in tiles of 128; the maxima of tiles bound what can be kept, so that only a few of
// them are read again.  Every filter keeps a prefix of the order (value descending, id ascending).
#pragma once

#include <cstdint>
#include <vector>

#include "samplers/candidates.hpp"

namespace aleator {

// How much of a row had to be looked at; for tests and for tuning.
enum class Path { argmax, top_k, guess, nucleus, min_p, all };
constexpr int n_paths = 6;

struct Filters {
  int64_t k = 0;          // outside 1..limit: top-k is skipped
  float p = 1, m = 0;     // not NaN
  int64_t limit = 0;      // the largest k that is not skipped
  int64_t guess = 32;     // where the search for a nucleus begins; no influence on what is kept
  bool in_order = false;  // the list's order and probabilities will be asked for
  bool any_list = false;  // what is kept will be asked for, not only the first token
};

class KeptRow {
 public:
  // Borrows `data` until the next load; float32 is read in place.
  void load(const void* data, int64_t n_vocab, Dtype dtype, bool logits);
  Path filter(const Filters& filters);

  // After filter.  The first token of the order:
  int32_t first() const { return argmax_; }
  // The list's length, and its ids and probabilities: in the order where top-k or top-p acted, by
  // id otherwise.  For filters with in_order.
  int64_t size() const { return all_ ? n_vocab_ : static_cast<int64_t>(ids_.size()); }
  void write_list(int64_t* ids, float* probs);
  // The winner of prob / (|q| + eps), q by position; -1 if a q is NaN.
  int32_t race(const float* q, float eps);
  // Survivors keep their logit, `masked` elsewhere.
  void write_select(float* out) const;
  // The first token in id order whose cumulative weight exceeds floor(u * total / 2^64).
  int32_t draw(uint64_t u);

 private:
  float masked() const;
  float bound_of(int64_t k);
  float bound_of_bits(float bits) const;
  void collect(float bound);
  void keep_top(int64_t k);
  bool keep_nucleus(float p, int64_t guess);  // true if the guess sufficed
  void keep_mass(uint64_t wanted);
  void keep_only_first();
  void keep_from(uint64_t key);
  void own_tile(int64_t tile);
  void become_infinite();
  void sort();
  uint64_t weigh();  // weights_ of the list; their sum
  uint64_t mass();   // of the row; leaves one sum per tile in weights_
  bool weightless(int64_t tile) const;
  void tile_probabilities(int64_t tile, int n, float* probs);
  void list_probabilities();

  bool logits_ = true, infinite_ = false;
  bool all_ = false;      // the list is the whole row, by id, and not written out
  bool certain_ = false;  // top_p <= 0: the one token has a probability of 1
  int64_t n_vocab_ = 0, n_tiles_ = 0;
  float top_ = 0;
  int32_t argmax_ = 0;
  uint64_t total_ = 0;  // what weights are divided by
  std::vector<const float*> tiles_;
  std::vector<float> maxima_, spare_, widened_, copies_;
  std::vector<uint8_t> flags_;
  std::vector<int32_t> ids_;  // the list
  std::vector<float> values_, probs_;
  std::vector<uint64_t> weights_, keys_, bins_;
  std::vector<std::pair<uint64_t, uint64_t>> pairs_;
};

}  // namespace aleator
