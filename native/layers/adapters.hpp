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
  void prepare(Pool& pool, const Adapted& batch, int64_t tokens);

  // The rest is called by every thread of the pool.

  // Begins products with one input; each is found, then all are lowered: A x.  No barrier follows:
  // whoever adds to their rows waits for it.
  bool any() const { return !runs_.empty(); }
  void begin(int thread) { found_[thread].first = found_[thread].end; }
  void find(int thread, const Weights& w);
  void lower(int thread, const Input& x);
  // Adds to rows [begin, end) of the product that was found as number k: y [T, W.out].
  void add(int thread, int64_t k, const Weights& w, int64_t begin, int64_t end, float* y) const;
  // Of W's rows that a thread takes at a time: whole blocks of B's.
  int64_t rows_per_unit(const Weights& w, int64_t tokens) const {
    const int64_t rows = aleator::rows_per_unit(w, tokens);
    return any() ? (rows + 15) / 16 * 16 : rows;
  }

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
  // What a matrix has, for all adapters.
  struct Found {
    const uint8_t* data;
    int64_t out, adapters;
    const LowRank* of;
    const LowRank* with(int32_t adapter) const {
      return adapter < adapters && of[adapter].a.data ? of + adapter : nullptr;
    }
  };
  // Of each thread, and all find the same: a step's products in their order, most of which the last
  // step had too. To look for each would be to wait for memory.
  struct Step {
    std::vector<Found> products;
    size_t first = 0, end = 0;  // those with the input that is at work
    int64_t units = 0;          // that lower them
  };
  std::vector<Step> found_;
  std::vector<float> low_;  // [product, entry, rank_]
  Pool* pool_ = nullptr;
};

}  // namespace aleator
