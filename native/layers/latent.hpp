// Attention whose keys and values are computed from a few numbers a token (DeepSeek-AI 2024,
// arXiv:2405.04434): what takes a layer's input to queries, keys and values, and what attention
// gives to the outputs of its heads.
#pragma once

#include <cstdint>
#include <vector>

#include "layers/products.hpp"

namespace aleator {

struct LatentLayer {
  Weights query, query_up;  // without query_up the first gives queries
  Weights compress;         // [rank + rotated, n_embd]
  Weights expand;           // [heads * (plain + dim_v), rank]; none where keys stay compressed
  // Of each head, where they do: [rank, plain] and [dim_v, rank].
  std::vector<Weights> key_up, value_up;
  const float *query_norm = nullptr, *norm = nullptr;
  // A head has `plain` channels, then those that are rotated; values have dim_v.
  int64_t heads = 0, rank = 0, plain = 0, rotated = 0, dim_v = 0;
  bool compressed() const { return !key_up.empty(); }
  int64_t dim() const { return plain + rotated; }
  int64_t key_dim() const { return compressed() ? rank + rotated : dim(); }
};

class LatentHeads {
 public:
  // Makes room for a layer; one thread, once for each layer of a step.
  void prepare(int64_t tokens, const LatentLayer& l);
  // Every thread; all have passed a barrier at the end.  Of the normalised running sum: queries
  // [tokens, heads, key_dim], keys [tokens, 1 or heads, key_dim], and, where keys are not
  // compressed, values [tokens, heads, dim_v].
  void project(int thread, Products& products, const LatentLayer& l, const float* attention_norm,
               float* q, float* k, float* v);
  // What attention gave, [tokens, heads, rank], as outputs of the heads [tokens, heads, dim_v].
  // Every thread; all have passed a barrier at the end.
  const float* outputs(int thread, Products& products, const LatentLayer& l, const float* attended);

 private:
  void compare_compressed(int thread, Products& products, const LatentLayer& l, float* q);
  void each_head(int thread, Products& products, const std::vector<Weights>& matrices,
                 const float* from, int64_t from_dim, float* to, int64_t to_dim);

  int64_t tokens_ = 0;
  std::vector<float> low_, queries_, compressed_, normed_, expanded_, outputs_;
  std::vector<float> lowered_;  // by adapters, A x: [heads, entries, rank]
  FormedRows formed_;
};

}  // namespace aleator
