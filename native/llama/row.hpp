// The candidates of one step as llama.cpp has them: an array of (id, logit, p) in an order that
// samplers change and that later samplers, sums and draws depend on.  Contract: docs/llama-cpp.md.
//
// As loaded, the array exists only in tiles of 128 logits, read where the caller has them and
// copied where they change; the ids are the places and every p is 0.  The first operation that
// needs real entries makes them.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "errors.hpp"
#include "samplers/candidates.hpp"
#include "samplers/tiles.hpp"

namespace aleator::llama {

struct Candidate {
  int32_t id;
  float logit;
  float p;
};

// The one comparison of all sorts: ties fall as libstdc++'s algorithms let them.
inline bool higher(const Candidate& a, const Candidate& b) { return a.logit > b.logit; }

class Row : RowTiles {
 public:
  // Borrows `data` until the next load.  NaN becomes -inf; nothing finite is an error.
  void load(const void* data, int64_t n_vocab, Dtype dtype);

  int64_t n_vocab() const { return n_vocab_; }
  int64_t size() const { return size_; }
  bool dense() const { return dense_; }
  Candidate* list();  // the entries; makes them if the row is dense

  bool sorted = false;    // believed to be descending; trusted, even where a sampler broke it
  int64_t selected = -1;  // place of the chosen candidate
  int32_t selected_token() const { return dense_ ? int32_t(selected) : data_[selected].id; }
  bool wants_p = false;  // whether someone will read p after the chain

  // Whether p holds the probabilities of exactly these candidates and logits.
  bool p_current = false;

  int64_t argmax();                // place of the first maximal logit
  float top();                     // the largest logit
  void sort(int64_t n);            // the first n in descending order; the rest goes
  void softmax(bool sort_first);   // p from logits, float32 sums in the array's order
  void divide(float temperature);  // 0 or less masks all but the first maximum
  void truncate(int64_t n) { size_ = n, p_current = false; }
  void drop_first(int64_t n) { data_ += n, size_ -= n, p_current = false; }
  int64_t keep_at_least(float threshold, int64_t min_keep);  // in order; 0 and no change if too few
  void mask_below(float threshold);
  // Masks the tokens whose bit is not set, 32 a word, and those past the end; false if all are.
  bool mask(std::span<const uint32_t> words);
  void keep_mass(float mass,
                 int64_t min_keep);  // the first in descending order, by p; see top_p.cpp
  int64_t draw(double u);            // place of the candidate that u in [0, 1) chooses

  // Calls change(id, logit) for the candidates with one of these ids, and perhaps for others.
  template <typename Change>
  void edit(std::span<const int32_t> ids, Change change) {
    p_current = false;
    if (dense_) {
      for (const int32_t id : ids)
        if (id < size_) change_logit(id, own_tile(id / tile_size)[id % tile_size], change);
      for (const int32_t id : ids)
        if (id < size_) rescan(id / tile_size);
    } else {
      for (int64_t i = 0; i < size_; ++i) change_logit(data_[i].id, data_[i].logit, change);
    }
  }

  // Calls visit(logit) for every candidate in the array's order.
  template <typename Visit>
  void each(Visit visit) {
    if (!dense_) {
      for (int64_t i = 0; i < size_; ++i) visit(data_[i].logit);
      return;
    }
    for (int64_t t = 0; t < n_tiles_; ++t) {
      const float* x = tiles_[t];
      for (int i = 0; i < width(t); ++i) visit(x[i]);
    }
  }

  // Sets p = exponential(logit, shift) in order and returns the sum, both before normalisation.
  template <typename Sum, typename Exp>
  Sum exponentials(Exp exponential);

 private:
  template <typename Change>
  static void change_logit(int32_t id, float& logit, Change& change) {
    change(id, logit);
    if (logit != logit) logit = -infinity;  // +inf - inf
  }
  int width(int64_t tile) const {
    return int(std::min<int64_t>(tile_size, size_ - tile * tile_size));
  }
  Candidate entry(int64_t id) const;  // of a dense row
  int64_t collect_at_least(float bound, int64_t most);
  void rescan(int64_t tile);
  void become(std::vector<Candidate>& entries, int64_t n);
  bool select_distinct(int64_t n);
  void select_first(int64_t n);
  static constexpr int n_buckets = 128;
  using Counts = std::array<int64_t, n_buckets>;
  int scatter(int64_t n, std::vector<Candidate>& out, Counts& counts);
  void bucket_sort(int64_t n, std::vector<Candidate>& out);

  int64_t size_ = 0;
  bool dense_ = true;
  std::vector<float> bounds_;
  std::vector<uint8_t> buckets_;
  std::vector<float> weights_;              // of a dense draw
  std::vector<Candidate> entries_, spare_;  // data_ points into entries_
  Candidate* data_ = nullptr;
};

// One pass of exponentials relative to the maximum, or to the first entry of a row believed to be
// sorted. Where that overflows (the row is not sorted, or its maximum is +inf) llama.cpp goes on
// with NaN; here the true maximum takes over, and tokens at +inf share everything.
template <typename Sum, typename Exp>
Sum Row::exponentials(Exp exponential) {
  Candidate* c = list();
  const auto pass = [&](float shift) {
    Sum sum = 0;
    for (int64_t i = 0; i < size_; ++i) {
      const auto e = exponential(c[i].logit, shift);
      c[i].p = float(e);
      sum += e;
    }
    return sum;
  };
  Sum sum = pass(sorted ? c[0].logit : top());
  if (sum < std::numeric_limits<Sum>::infinity()) return sum;
  float shift = -infinity;
  for (int64_t i = 0; i < size_; ++i) shift = std::max(shift, c[i].logit);
  if (shift == -infinity) nothing_finite();
  if (shift < infinity) return pass(shift);
  sum = 0;
  for (int64_t i = 0; i < size_; ++i) sum += c[i].p = c[i].logit == infinity ? 1.0f : 0.0f;
  return sum;
}

}  // namespace aleator::llama
