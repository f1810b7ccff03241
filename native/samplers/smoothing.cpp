// Contract: src/aleator/samplers/smoothing.py
#include "samplers/making.hpp"

namespace aleator {

static void smoothing(Candidates& c, float a, float b) {
  if (a == 0 && b == 0) return;
  auto& logits = c.edit_all();
  const float top = c.top();
  for (float& z : logits) {
    const float d = z - top, square = d * d;
    const float cube = square * d;
    const float bent = top - a * square;
    z = bent + b * cube;
  }
  c.settle();
}

ALEATOR_BIND(sampler_smoothing) { bind_stateless<smoothing>(m, "Smoothing", "square"_a, "cube"_a); }

}  // namespace aleator
