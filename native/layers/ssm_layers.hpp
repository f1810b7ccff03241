// Layers with a selective state space, for whole micro-batches on the threads of a pool.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "layers/products.hpp"
#include "layers/ssm.hpp"

namespace aleator {

struct SSMLayer {
  Weights in, select, time_step, out;
  const float* norm = nullptr;  // [n_embd]
  StateSpace space;
  // Time step, B and C are RMS-normalised with it, times state_norms [rank], [state], [state] or 1.
  std::optional<float> norm_eps;
  const float* state_norms[3] = {};
};

class SSMLayers {
 public:
  // Makes room for the layers' `tokens`; one thread.
  void prepare(int64_t tokens, const std::vector<SSMLayer>& layers);
  // The running sum += the layer; every thread.
  void run(int thread, Products& products, const SSMLayer& layer, const Runs& runs, float eps);

 private:
  int64_t tokens_ = 0;
  std::vector<float> xz_, u_, selected_, dt_, y_, ones_;
};

}  // namespace aleator
