// Layers that keep a state, for whole micro-batches on the threads of a pool.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "layers/delta_net_layers.hpp"
#include "layers/head_layers.hpp"
#include "layers/products.hpp"
#include "layers/ssm.hpp"

namespace aleator {

// A selective state space.
struct SSMLayer {
  Weights in, select, time_step, out;
  const float* norm = nullptr;  // [n_embd]
  StateSpace space;
  // Time step, B and C are RMS-normalised with it, times state_norms [rank], [state], [state] or 1.
  std::optional<float> norm_eps;
  const float* state_norms[3] = {};
};

using RecurrentLayer = std::variant<SSMLayer, HeadLayer, ShortLayer, DeltaNetLayer>;

class RecurrentLayers {
 public:
  // Makes room for the layers' `tokens`; one thread.
  void prepare(int64_t tokens, const std::vector<RecurrentLayer>& layers);
  // The running sum += scale * what the layer gives; every thread.
  void run(int thread, Products& products, const RecurrentLayer& layer, const Runs& runs, float eps,
           float scale = 1);

  HeadLayers& heads() { return heads_; }

 private:
  void run(int thread, Products& products, const SSMLayer& layer, const Runs& runs, float eps,
           float scale);

  int64_t tokens_ = 0;
  std::vector<float> xz_, u_, selected_, dt_, y_, ones_;
  HeadLayers heads_;
  DeltaNetLayers delta_;
};

}  // namespace aleator
