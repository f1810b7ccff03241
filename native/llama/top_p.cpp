// Contract: docs/llama-cpp.md
#include "llama/sampler.hpp"
#include "samplers/making.hpp"

namespace aleator::llama {

static void top_p(Row& row, float top_p, int64_t min_keep) {
  if (top_p >= 1) return;
  row.softmax(false);
  row.keep_mass(top_p, min_keep);
}

ALEATOR_BIND(llama_top_p) {
  bind_stateless<top_p, LlamaSampler>(m, "LlamaTopP", "top_p"_a, "min_keep"_a);
}

}  // namespace aleator::llama
