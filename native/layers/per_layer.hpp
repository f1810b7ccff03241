// Embeddings of tokens for each layer (gemma4's E2B and E4B): every layer has a part of its own
// that they gate (docs/numerics.md, part 2).
#pragma once

#include <cstdint>
#include <vector>

#include "layers/gates.hpp"
#include "layers/products.hpp"

namespace aleator {

// What all layers have in common.
struct LayerEmbeddings {
  Weights embedding;            // [n_vocab, layers * width]
  Weights projection;           // [layers * width, n_embd], of the tokens' embeddings
  const float* norm = nullptr;  // [width], of each layer's part of what `projection` gives
  int64_t width = 0;
  int64_t layers() const { return width ? projection.out / width : 0; }
};

// A layer's part: the running sum += norm(out (gate(in x) * embeddings)).
struct LayerEmbedding {
  Weights in, out;              // [width, n_embd], [n_embd, width]
  const float* norm = nullptr;  // [n_embd]
  int64_t layer = 0;
};

class PerLayer {
 public:
  void set(const LayerEmbeddings& all) { all_ = all; }
  bool any() const { return all_.width > 0; }
  void prepare(int64_t tokens);  // one thread
  // Every thread runs the rest; all have passed a barrier at its end.  The running sum is the
  // tokens' embeddings; ids: none: every token counts as token 0, as in llama.cpp.
  void project(int thread, Products& products, const int64_t* ids);
  void add(int thread, Products& products, const LayerEmbedding& l, Gate gate);

 private:
  LayerEmbeddings all_;
  int64_t tokens_ = 0;
  std::vector<float> inputs_, rows_, gate_;  // [tokens, layers * width], the same, [tokens, width]
};

}  // namespace aleator
