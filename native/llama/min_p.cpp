// Contract: docs/llama-cpp.md
#include <cmath>

#include "llama/sampler.hpp"
#include "samplers/making.hpp"

namespace aleator::llama {

static void min_p(Row& row, float min_p, int64_t min_keep) {
  if (min_p <= 0) return;
  const float distance = std::log(min_p);
  if (!row.sorted) {
    const float top = row.top();
    if (top == -infinity) nothing_finite();
    if (row.keep_at_least(top + distance, min_keep)) return;
    row.sort(row.size());
  }
  const Candidate* c = row.list();
  const float threshold = c[0].logit + distance;
  int64_t kept = 1;
  while (kept < row.size() && (c[kept].logit >= threshold || kept < min_keep)) ++kept;
  row.truncate(kept);
}

ALEATOR_BIND(llama_min_p) {
  bind_stateless<min_p, LlamaSampler>(m, "LlamaMinP", "min_p"_a, "min_keep"_a);
}

}  // namespace aleator::llama
