// Contract: src/aleator/samplers/bad_words.py
#include <algorithm>

#include "samplers/making.hpp"

namespace aleator {

// Whether all tokens of the sequence but its last were just accepted.
static bool stands_before(const Step& step, const std::vector<int32_t>& sequence) {
  const size_t n = sequence.size() - 1;
  if (!n) return true;
  if (!step.history || step.history->tokens.size() < n) return false;
  return std::equal(sequence.begin(), sequence.end() - 1, step.history->tokens.end() - n);
}

static void bad_words(Candidates& c, const Step& step,
                      const std::vector<std::vector<int32_t>>& sequences) {
  int32_t last = -1;
  std::vector<int32_t> banned;
  for (const auto& sequence : sequences) {
    last = std::max(last, sequence.back());
    if (stands_before(step, sequence)) banned.push_back(sequence.back());
  }
  require_token("bad_words", last, c.n_vocab());
  c.mask(banned);
}

ALEATOR_BIND(sampler_bad_words) { bind_stateless<bad_words>(m, "BadWords", "sequences"_a); }

}  // namespace aleator
