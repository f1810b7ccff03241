// Layers with a state space whose heads have one decay each, and layers that keep a short
// convolution's inputs alone, for whole micro-batches.
#pragma once

#include <cstdint>
#include <vector>

#include "layers/head_space.hpp"
#include "layers/products.hpp"

namespace aleator {

struct HeadLayer {
  Weights in, out;
  const float* norm = nullptr;  // of the layer's input, [n_embd]; none beside attention
  HeadSpace space;
};

// The projection's rows are B, C and x, each [channels]; the layer gives out (C * conv(B * x)).
struct ShortLayer {
  Weights in, out;
  const float* norm = nullptr;  // [n_embd]
  Convolution conv;
};

class HeadLayers {
 public:
  // One thread.
  void prepare(int64_t tokens) { tokens_ = tokens; }
  void reserve(const HeadLayer& l) {
    reserve(l.space.projected(), l.space.conv.channels, l.space.inner);
  }
  void reserve(const ShortLayer& l) {
    reserve(3 * l.conv.channels, l.conv.channels, l.conv.channels);
  }

  // The rest is called by every thread.

  // Has a barrier after it, before finish().
  void project(int thread, Products& products, const HeadLayer& l, const Runs& runs,
               const Input& x);
  // The running sum += scale * what the layer gives; a barrier follows.
  void finish(int thread, Products& products, const HeadLayer& l, const Runs& runs, float eps,
              float scale);
  void run(int thread, Products& products, const ShortLayer& l, const Runs& runs, float eps,
           float scale);

 private:
  void reserve(int64_t projected, int64_t convolved, int64_t y) {
    grow(projected_, tokens_ * projected);
    grow(convolved_, tokens_ * convolved);
    grow(y_, tokens_ * y);
  }

  int64_t tokens_ = 0;
  std::vector<float> projected_, convolved_, y_;
};

}  // namespace aleator
