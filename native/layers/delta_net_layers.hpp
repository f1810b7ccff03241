// Layers with a gated delta net, for whole micro-batches on the threads of a pool.
#pragma once

#include <cstdint>
#include <vector>

#include "layers/delta_net.hpp"
#include "layers/products.hpp"

namespace aleator {

struct DeltaNetLayer {
  Weights qkv, gate, beta, decay, out;
  const float* norm = nullptr;  // [n_embd]
  DeltaNet net;
};

class DeltaNetLayers {
 public:
  // One thread: `tokens` come, through these layers.
  void prepare(int64_t tokens) { tokens_ = tokens; }
  void reserve(const DeltaNetLayer& layer);
  // The running sum += scale * what the layer gives; every thread.
  void run(int thread, Products& products, const DeltaNetLayer& layer, const Runs& runs, float eps,
           float scale);

 private:
  int64_t tokens_ = 0;
  std::vector<float> values_, convolved_, gate_, beta_, decay_, y_;
};

}  // namespace aleator
