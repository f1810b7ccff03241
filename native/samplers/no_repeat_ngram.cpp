// Contract: src/aleator/samplers/no_repeat_ngram.py
#include <algorithm>

#include "samplers/making.hpp"

namespace aleator {

static void no_repeat_ngram(Candidates& c, const Step& step, int64_t size) {
  if (!size || !step.history) return;
  const auto& tokens = step.history->tokens;
  const auto n = int64_t(tokens.size());
  if (n < size) return;
  const int64_t before = size - 1;  // tokens of a run before its last
  const int32_t* ending = tokens.data() + n - before;
  std::vector<int32_t> banned;
  for (int64_t i = 0; i + before < n; ++i)
    if (!before || (tokens[i + before - 1] == ending[before - 1] &&
                    std::equal(ending, ending + before, tokens.data() + i)))
      banned.push_back(tokens[i + before]);
  c.mask(banned);
}

ALEATOR_BIND(sampler_no_repeat_ngram) {
  bind_stateless<no_repeat_ngram>(m, "NoRepeatNgram", "no_repeat_ngram_size"_a);
}

}  // namespace aleator
