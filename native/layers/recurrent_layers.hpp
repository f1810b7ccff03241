// Layers that keep a state, for whole micro-batches on the threads of a pool.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "layers/products.hpp"
#include "layers/state_kernels.hpp"

namespace aleator {

// A selective state space.
struct SSMLayer {
  Weights in, select, time_step, out;
  const float* norm = nullptr;  // [n_embd]
  StateSpace space;
  // Whether time step, B and C are RMS-normalised, with the decoder's eps where there is no other,
  // times state_norms [rank], [state], [state] or 1.
  bool normed = false;
  std::optional<float> norm_eps;
  const float* state_norms[3] = {};
};

// A state space whose heads have one decay each.
struct HeadLayer {
  Weights in, out;
  const float* norm = nullptr;  // of the layer's input, [n_embd]; none beside attention
  HeadSpace space;
};

// A short convolution, whose inputs alone are kept.  The projection's rows are B, C and x, each
// [channels]; the layer gives out (C * conv(B * x)).
struct ShortLayer {
  Weights in, out;
  const float* norm = nullptr;  // [n_embd]
  Convolution conv;
};

// With a decay for each channel (Kimi Team 2025, arXiv:2510.26692), qkv is of queries alone, keys
// and values have k and v, decays and gates are computed from a few numbers by decay_up and
// gate_up, and gates are sigmoids.
struct DeltaNetLayer {
  Weights qkv, gate, beta, decay, out;
  Weights k, v, gate_up, decay_up;
  const float* norm = nullptr;  // [n_embd]
  DeltaNet net;
};

using RecurrentLayer = std::variant<SSMLayer, HeadLayer, ShortLayer, DeltaNetLayer>;

class RecurrentLayers {
 public:
  // Makes room for a layer's `tokens`; one thread, once for each layer of a step.
  void prepare(int64_t tokens, const RecurrentLayer& layer);

  // The rest is called by every thread.

  // The running sum += what the layer gives; a barrier follows.
  void run(int thread, Products& products, const RecurrentLayer& layer, const Runs& runs);
  // The two parts of a state space beside attention, which takes x too.
  void project(int thread, Products& products, const HeadLayer& l, const Runs& runs,
               const Input& x);
  void finish(int thread, Products& products, const HeadLayer& l, const Runs& runs);

 private:
  void reserve(const SSMLayer& l);
  void reserve(const HeadLayer& l);
  void reserve(const ShortLayer& l);
  void reserve(const DeltaNetLayer& l);
  void run_layer(int thread, Products& products, const SSMLayer& l, const Runs& runs);
  void run_layer(int thread, Products& products, const HeadLayer& l, const Runs& runs);
  void run_layer(int thread, Products& products, const ShortLayer& l, const Runs& runs);
  void run_layer(int thread, Products& products, const DeltaNetLayer& l, const Runs& runs);
  // Queries, keys and values, convolved; gates; decays and betas before their functions.
  void project(int thread, Products& products, const DeltaNetLayer& l, const Runs& runs);

  int64_t tokens_ = 0;
  // What layers project, convolve and give; then a state space's, and a delta net's.
  std::vector<float> projected_, convolved_, y_;
  std::vector<float> selected_, dt_, ones_;
  std::vector<float> gate_, beta_, decay_, few_gate_, few_decay_;
};

}  // namespace aleator
