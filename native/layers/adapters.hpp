// What low-rank adapters add to the products of a step, each for its own tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "layers/linear.hpp"

namespace aleator {

// Of a matrix W: y = W x becomes y + B (scale * (A x)); see docs/numerics.md, part 2.
struct LowRank {
  Weights a;  // [rank, W.in]; no data: W stays as it is
  // For every sixteen rows of B its columns, [rank, 16]; 0 after the last row.  In Q8_0 up to 32
  // columns follow their sixteen scales, float16, one for each row.
  Weights b;
  float factor = 1;              // of the scale: alpha / rank
  const float* grows = nullptr;  // [W.out] of W x (without the bias) that are added too, or none
  bool fits(const Weights& w) const {
    return !a.data || (a.in == w.in && b.out == (w.out + 15) / 16 * a.out);
  }
};

// Bytes of sixteen rows of B.
constexpr int64_t bytes_of_sixteen(Stored type, int64_t rank) {
  return type == Stored::q8_0 ? 16 * rank + (rank + 31) / 32 * 32 : stored_bytes(type, 16 * rank);
}

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

// Rows of a product that follow each other, and whose tokens have an adapter at one scale.
struct AdaptedRun {
  int64_t row, rows;
  int64_t entry, step;  // of A x: the first row's, and how far the next one's is
  int32_t adapter;
  float scale;
};
struct AdaptedRows {
  std::vector<AdaptedRun> runs;
  int64_t entries = 0;
};

// Adapters of T tokens; those of token t are starts[t] to starts[t + 1], in the order of their sum.
struct Adapted {
  const int64_t* starts = nullptr;    // [T + 1]; none: no token has one
  const int32_t* adapters = nullptr;  // their numbers
  const float* scales = nullptr;
};

class Adapters {
 public:
  using OfMatrix = std::vector<LowRank>;  // by adapter
  // W is the matrix whose bytes are at `data`.
  void set(const uint8_t* data, int64_t adapter, const LowRank& given);
  // Of the tokens' embeddings: row i of A [n_vocab, rank] is what A makes of token i.
  void set_embedding(int64_t adapter, const LowRank& given);
  int64_t size() const { return n_adapters_; }
  // Logits are wanted of `wanted` tokens, n_wanted of them.
  void prepare(Pool& pool, const Adapted& batch, int64_t tokens, const int64_t* wanted,
               int64_t n_wanted);
  // Adds to a token's embedding x [n]; one thread.
  void embed(int64_t token, int64_t id, float* x, int64_t n);

  // What products have whose rows are not those of the batch.

  // Appends the runs of n rows, which are of these tokens; without them of all in their order.
  void add_runs(const int64_t* tokens, int64_t n, AdaptedRows& to) const;
  // What W has, or nothing.
  const OfMatrix* of(const Weights& w) const;
  int64_t rank() const { return rank_; }  // the largest
  static constexpr int64_t rows_at_once = 8;
  int64_t blocks() const { return (rank_ + rows_at_once - 1) / rows_at_once; }
  // Rows [begin, begin + rows_at_once) of A x for a run of the rows of x: low [entries, rank()].
  void lower(const LowRank& given, const AdaptedRun& run, int64_t begin, const Input& x,
             float* low) const;
  // Adds to rows [begin, end) of the products of a run with W: y [rows, W.out], `stride` apart.
  void add(const LowRank& given, const AdaptedRun& run, const Weights& w, int64_t begin,
           int64_t end, const float* low, float* y, int64_t stride) const;
  // What a matrix has of an adapter, or nothing.
  static const LowRank* one(const OfMatrix* all, int32_t adapter) {
    const bool has = all && adapter < int64_t(all->size()) && (*all)[adapter].a.data;
    return has ? &(*all)[adapter] : nullptr;
  }

  // The rest is called by every thread of the pool.

  // Begins products with one input; each is found, then all are lowered: A x.  No barrier follows:
  // whoever adds to their rows waits for it.
  bool any() const { return !all_.runs.empty(); }
  const AdaptedRows& all() const { return all_; }
  const AdaptedRows& wanted() const { return wanted_; }
  void begin(int thread, const AdaptedRows& rows) {
    found_[thread].first = found_[thread].end, found_[thread].rows = &rows;
  }
  void find(int thread, const Weights& w);
  void lower(int thread, const Input& x);
  // Adds to rows [begin, end) of the product that was found as number k: y [rows, W.out].
  void add(int thread, int64_t k, const Weights& w, int64_t begin, int64_t end, float* y) const;
  // Pieces of W: whole blocks of B's. Of few tokens more rows than without adapters, where threads
  // can still share evenly: W and B are read in turns, and memory is faster the longer each turn
  // is.
  Shares shares(const Weights& w, int64_t tokens) const {
    int64_t rows = rows_per_unit(w, tokens);
    if (tokens <= few_rounded)
      rows = std::max(rows, std::min(rows_in_turn, w.out / (3 * pool_->size())));
    return {1, w.out, (rows + 15) / 16 * 16};
  }

 private:
  static constexpr int64_t most_rows = 32, rows_in_turn = 96;

  std::unordered_map<const uint8_t*, OfMatrix> matrices_;
  OfMatrix embedding_;
  int64_t n_adapters_ = 0, rank_ = 0;
  Adapted batch_;
  AdaptedRows all_, wanted_;
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
    const AdaptedRows* rows = nullptr;
    int64_t units = 0;  // that lower them
  };
  std::vector<Step> found_;
  std::vector<float> low_;  // [product, entry, rank_]
  Pool* pool_ = nullptr;
};

}  // namespace aleator
