// The candidates of one step: token ids and logits, always in ascending order of id.
//
// Canonical form (docs/numerics.md) holds between any two calls: no NaN, no -0, no infinity except
// the -inf of masked tokens, which are not candidates.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "errors.hpp"
#include "samplers/ranked_row.hpp"

namespace aleator {

inline void check_length(int64_t n_logits) {
  if (n_logits < 1)
    throw LogitsError("logits are empty: one value per token of the vocabulary is needed");
  if (n_logits > contract::max_vocab)
    throw LogitsError("logits have ", n_logits, " values: at most 1,048,576 are supported");
}

// Contract: docs/numerics.md, "Entropy".
struct Entropy {
  double bits;    // of the distribution
  double depth;   // the mean, by probability, of how many bits a weight lies below the largest
  uint64_t mass;  // of all candidates, the largest logit weighing 2^40
};

// `tops` candidates share the largest logit, which lies `gap` bits above the next; the sums are of
// all others.
Entropy entropy_of(int64_t tops, double gap, const EntropySums& sums);

class Candidates : public RankedRow<LogitValues> {
 public:
  // Borrows `data` until the next load; float32 is read in place.
  void load(const void* data, int64_t n_vocab, Dtype dtype);

  int64_t count() const;  // masked tokens not counted
  double temperature() const { return temperature_; }
  float scale() const { return scale_; }
  const Buffer<float>& logits() const { return values_; }  // compact only

  void multiply_temperature(double factor);  // 1e-5 or less leaves the argmax alone
  void materialise();                        // z = z / T, T = 1

  // A logit to be written; null if the token is masked or not a candidate.  Call settle() after the
  // last.
  float* edit(int32_t id);
  Buffer<float>& edit_all();  // compact and materialised; ends with settle()
  using RankedRow::settle;
  // Masks tokens; those that are no candidates do no harm.  Without any nothing is written.
  void mask(const std::vector<int32_t>& ids);

  void become(int32_t id);                       // one token, candidate or not, with logit 1
  void remove(const std::vector<int32_t>& ids);  // ascending, not all of them
  // The tokens whose bit is set, 32 a word, none past the end.  False, with the list spoilt, if
  // none is left.
  bool keep_allowed(std::span<const uint32_t> words);

  // The leading run of the order whose weights reach `bound`: it ends before the first candidate
  // that weighs less.  Its tokens by id ascending, and the one that stands last in the order.
  struct Run {
    std::vector<int32_t> ids;
    int32_t last = -1;
  };
  const Run& run(uint64_t bound);
  bool keep_run(uint64_t bound);  // false, and nothing changes, if the run is empty
  // The same run; where it is shorter than `min_keep`, or empty, the first `min_keep` of the order
  // with all that tie with the last of them.
  void keep_probable(uint64_t bound, int64_t min_keep);

  Moments moments() const;
  SquareSums squares() const;
  Entropy entropy() const;
  Drawn draw(uint64_t u);  // and selects the token
  // Mass of the row when Softmax saw it, for samplers with mass="full"; 0 if it never did or logits
  // changed.  And the largest logit then, which the weights in it are against.
  uint64_t full_mass() const { return full_mass_; }
  float full_top() const { return full_top_; }
  void record_full_mass() { full_mass_ = mass(), full_top_ = top(); }

  // A compact copy of the candidates.
  void list(std::vector<int32_t>& ids, std::vector<float>& logits) const;

  int32_t selected = -1;  // token id, -1 while none is

 private:
  void set_temperature(double temperature);
  uint64_t first_below(uint64_t bound);

  double temperature_ = 1;
  uint64_t full_mass_ = 0;
  float full_top_ = 0;
  Run run_;
};

}  // namespace aleator
