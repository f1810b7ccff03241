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

struct SSMBatch : StepEnds {
  Runs runs;
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
