// Contract: src/aleator/samplers/top_k.py
#include "samplers/making.hpp"

namespace aleator {

static void top_k(Candidates& c, int64_t k) {
  if (k > 0) c.keep_first(k);
}

// Another k where the first is off or not less than the vocabulary.
static void limited_top_k(Candidates& c, int64_t k, int64_t limit) {
  c.keep_first(k > 0 && k < c.n_vocab() ? k : limit);
}

ALEATOR_BIND(sampler_top_k) {
  bind_stateless<top_k>(m, "TopK", "top_k"_a);
  bind_stateless<limited_top_k>(m, "LimitedTopK", "top_k"_a, "limit"_a);
}

}  // namespace aleator
