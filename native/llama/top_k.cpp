// Contract: docs/llama-cpp.md
#include <algorithm>

#include "llama/sampler.hpp"
#include "samplers/making.hpp"

namespace aleator::llama {

static void top_k(Row& row, int64_t k) {
  if (k <= 0) return;
  k = std::min(k, row.size());
  if (row.sorted)
    row.truncate(k);
  else
    row.sort(k);
}

ALEATOR_BIND(llama_top_k) { bind_stateless<top_k, LlamaSampler>(m, "LlamaTopK", "top_k"_a); }

}  // namespace aleator::llama
