// Contract: docs/llama-cpp.md
#include <algorithm>
#include <cmath>

#include "llama/sampler.hpp"
#include "samplers/making.hpp"

namespace aleator::llama {

struct Ranked {
  float score;
  Candidate candidate;
};

static void typical_p(Row& row, std::vector<Ranked>& ranked, float typical_p, int64_t min_keep) {
  if (typical_p >= 1) return;
  row.softmax(true);
  Candidate* c = row.list();
  // A probability of zero makes llama.cpp's entropy NaN; here such candidates are left out.  They
  // need not come last: a row believed to be sorted may have had a bias.
  const int64_t n =
      std::remove_if(c, c + row.size(), [](const Candidate& x) { return x.p == 0; }) - c;
  float entropy = 0;
  for (int64_t i = 0; i < n; ++i) entropy += -c[i].p * std::log(c[i].p);
  ranked.resize(n);
  for (int64_t i = 0; i < n; ++i) ranked[i] = {std::abs(-std::log(c[i].p) - entropy), c[i]};
  std::sort(ranked.begin(), ranked.end(),
            [](const Ranked& a, const Ranked& b) { return a.score < b.score; });
  float sum = 0;
  int64_t kept = 0;
  while (kept < n) {
    sum += ranked[kept++].candidate.p;
    if (sum > typical_p && kept >= min_keep) break;
  }
  for (int64_t i = 0; i < kept; ++i) c[i] = ranked[i].candidate;
  row.truncate(kept);
  row.sorted = false;
}

ALEATOR_BIND(llama_typical_p) {
  bind_stateless<typical_p, LlamaSampler>(m, "LlamaTypicalP", "typical_p"_a, "min_keep"_a);
}

}  // namespace aleator::llama
