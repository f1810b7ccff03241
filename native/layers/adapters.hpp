// What low-rank adapters add to the products of a step, each for its own tokens.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "layers/linear.hpp"

namespace aleator {

// Of a matrix W: y = W x becomes y + B (scale * (A x)); see docs/numerics.md, part 2.
struct LowRank {
  Weights a;         // [rank, W.in]; no data: W stays as it is
  Weights b;         // for every sixteen rows of B its columns, [rank, 16]; 0 after the last row
  float factor = 1;  // of the scale: alpha / rank
  const float* grows = nullptr;  // [W.out] of W x (without the bias) that are added too, or none
  bool fits(const Weights& w) const {
    return !a.data || (a.in == w.in && b.out == (w.out + 15) / 16 * a.out);
  }
};

// y += B low, of tokens one after the other, [tokens, rank] and [tokens, W.out].
struct LowRanks {
  const Weights* b;
  int64_t rank, tokens;
  const float* low;
  int64_t low_stride;
  float* y;
  int64_t y_stride;
};
// In rows [begin, end) of W.
ALEATOR_KERNEL(void, add_low_ranks, (const LowRanks& of, int64_t begin, int64_t end))

// Adapters of T tokens; those of token t are starts[t] to starts[t + 1], in the order of their sum.
struct Adapted {
  const int64_t* starts = nullptr;    // [T + 1]; none: no token has one
  const int32_t* adapters = nullptr;  // their numbers
  const float* scales = nullptr;
};

class Adapters {
 public:
  // W is the matrix whose bytes are at `data`.
  void set(const uint8_t* data, int64_t adapter, const LowRank& given);
  int64_t size() const { return n_adapters_; }
  void prepare(const Adapted& batch, int64_t tokens, int threads);

  // The rest is called by every thread of the pool.

  // Begins products with one input; each is found, then all are lowered: A x.
  bool any() const { return !runs_.empty(); }
  void begin(int thread) { found_[thread].clear(); }
  void find(int thread, const Weights& w);
  void lower(int thread, Pool& pool, const Input& x);
  // Adds to rows [begin, end) of the product that was found as number k: y [T, W.out].
  void add(int thread, int64_t k, const Weights& w, int64_t begin, int64_t end, float* y) const;

 private:
  using OfMatrix = std::vector<LowRank>;  // by adapter
  struct Run {                           // tokens that follow each other and have the same adapters
    int64_t token, tokens, entry, step;  // entries of one adapter are `step` apart
    int32_t adapter;
  };
  static constexpr int64_t rows_at_once = 8, most_tokens = 32;

  std::unordered_map<const uint8_t*, OfMatrix> matrices_;
  int64_t n_adapters_ = 0, rank_ = 0;  // rank_: the largest
  Adapted batch_;
  int64_t entries_ = 0;
  std::vector<Run> runs_;
  std::vector<std::vector<const OfMatrix*>> found_;  // of each thread: all find the same
  std::vector<float> low_;                           // [product, entry, rank_]
};

}  // namespace aleator
