// Contract: docs/llama-cpp.md
#include <cmath>

#include "llama/sampler.hpp"
#include "samplers/making.hpp"

namespace aleator::llama {

static void top_n_sigma(Row& row, float n) {
  if (n <= 0 || row.size() <= 1) return;
  float sum = 0;
  int64_t count = 0;
  row.each([&](float z) {
    if (z != -infinity) sum += z, ++count;
  });
  if (!count) nothing_finite();
  const float mean = sum / float(count);
  float squares = 0;  // each square in float64, each sum rounded to float32
  row.each([&](float z) {
    if (z == -infinity) return;
    const double d = z - mean;
    squares = float(squares + d * d);
  });
  row.mask_below(row.top() - n * std::sqrt(squares / float(count)));
}

ALEATOR_BIND(llama_top_n_sigma) {
  bind_stateless<top_n_sigma, LlamaSampler>(m, "LlamaTopNSigma", "top_n_sigma"_a);
}

}  // namespace aleator::llama
