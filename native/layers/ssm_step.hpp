// One micro-batch through a whole decoder whose layers all keep a state, on the processor: from the
// embedding's rows to the logits, on all threads of the pool, with weights in their stored types
// and states read from and left in the cache's rows.  Everything is computed in float32.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "layers/recurrent_layers.hpp"

namespace aleator {

struct SSMShape {
  Weights embedding, output;           // [n_vocab, n_embd]; no output: hidden states are given
  const float* output_norm = nullptr;  // [n_embd]
  float eps = 0;
};

// T tokens.  All pointers are to arrays that outlive the call.
struct SSMBatch {
  int64_t tokens = 0;
  const int64_t* ids = nullptr;       // [T], or
  const float* embeddings = nullptr;  // [T, n_embd]
  Runs runs;
  const int64_t* out_rows = nullptr;  // [n_out] the tokens whose logits are wanted
  int64_t n_out = 0;
  float* logits = nullptr;  // [n_out, n_vocab]
};

class SSMStep {
 public:
  explicit SSMStep(const SSMShape& shape) : shape_(shape) {}
  void add_layer(const RecurrentLayer& layer) { layers_.push_back(layer); }
  // The caller has checked every index.  Calls from several threads take turns.
  void run(Pool& pool, const SSMBatch& batch, Watch* watch = nullptr);

 private:
  void prepare(Pool& pool, const SSMBatch& batch);

  SSMShape shape_;
  std::vector<RecurrentLayer> layers_;
  std::mutex turn_;
  Products products_;
  RecurrentLayers work_;
};

}  // namespace aleator
