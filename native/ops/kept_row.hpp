// One row of the operator: what top-k, top-p and min-p keep of it, and the choice of a token.
// Contract: docs/operator.md.
//
// Tiles, prefixes, masses and the draw are the chains' (samplers/ranked_row.hpp); here are the
// operator's own rules: what its list holds, probabilities, and the race against q.
#pragma once

#include <cstdint>
#include <vector>

#include "samplers/ranked_row.hpp"

namespace aleator {

// How much of a row had to be looked at.
enum class Path { argmax, top_k, nucleus, min_p, all };
constexpr int n_paths = 5;

struct Filters {
  int64_t k = 0;          // outside 1..limit: top-k is skipped
  float p = 1, m = 0;     // not NaN
  int64_t limit = 0;      // the largest k that is not skipped
  bool in_order = false;  // the list's order and probabilities will be asked for
  bool any_list = false;  // what is kept will be asked for, not only the first token
};

template <typename Values>
class KeptRow {
 public:
  // Borrows `data` until the next load; float32 is read in place.
  void load(const void* data, int64_t n_vocab, Dtype dtype);
  Path filter(const Filters& filters);

  // After filter.  The first token of the order:
  int32_t first() const { return first_; }
  // The list's ids and probabilities, then zeros: in the order where top-k or top-p acted, by id
  // otherwise.  For filters with in_order.
  void write_list(int64_t* ids, float* probs);
  // The winner of prob / (|q| + eps), q by position; -1 if a q is NaN.
  int32_t race(const float* q, float eps);
  // Survivors keep their logit; the others are masked.
  void write_select(float* out) const;
  // The first token in id order whose cumulative weight exceeds floor(u * total / 2^64).
  int32_t draw(uint64_t u);

 private:
  static constexpr bool logits = !Values::bounded;

  void keep_min_p(float m);
  void tile_probabilities(int64_t tile, int n, float* probs);
  void make_list();
  void fill_up();
  int32_t race_whole_row(const float* q, float eps);

  RankedRow<Values> row_;
  int32_t first_ = 0;
  uint64_t total_ = 0;     // what weights are divided by
  bool infinite_ = false;  // the row's largest logit is +inf
  bool whole_ = false;     // the list is the whole row, by id
  bool ranked_ = false;    // the list is in order
  bool certain_ = false;   // top_p <= 0: the one token has a probability of 1
  int64_t at_least_ = 0;   // tokens of the list; masked ones fill up
  std::vector<int32_t> ids_;
  std::vector<float> values_, probs_;
  std::vector<uint64_t> weights_;
};

extern template class KeptRow<LogitValues>;
extern template class KeptRow<ProbabilityValues>;

}  // namespace aleator
