// Contract: docs/llama-cpp.md
#include "llama/sampler.hpp"
#include "samplers/making.hpp"

namespace aleator::llama {

static void greedy(Row& row) {
  if (row.top() == -infinity) nothing_finite();
  row.selected = row.argmax();
}

ALEATOR_BIND(llama_greedy) { bind_stateless<greedy, LlamaSampler>(m, "LlamaGreedy"); }

}  // namespace aleator::llama
