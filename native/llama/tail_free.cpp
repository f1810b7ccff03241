// Contract: docs/llama-cpp.md.  Removed from llama.cpp in October 2024; this is what it did.
#include <cmath>

#include "llama/sampler.hpp"
#include "samplers/making.hpp"

namespace aleator::llama {

static void tail_free(Row& row, std::vector<float>& curvature, float z, int64_t min_keep) {
  if (z >= 1 || row.size() <= 2) return;
  row.softmax(true);
  const Candidate* c = row.list();
  const int64_t n = row.size() - 2;
  curvature.resize(n);
  float total = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float slope = c[i].p - c[i + 1].p, next = c[i + 1].p - c[i + 2].p;
    total += curvature[i] = std::abs(slope - next);
  }
  for (float& x : curvature) x = total > 1e-6f ? x / total : 1.0f / float(n);
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += curvature[i];
    // The index is the number kept, as it was there: one less than the curvature covers, but
    // never none.
    if (sum > z && i >= min_keep) return row.truncate(i > 0 ? i : 1);
  }
}

ALEATOR_BIND(llama_tail_free) {
  bind_stateless<tail_free, LlamaSampler>(m, "LlamaTailFree", "tfs_z"_a, "min_keep"_a);
}

}  // namespace aleator::llama
