// Contract: docs/llama-cpp.md
#include "llama/sampler.hpp"
#include "samplers/making.hpp"
#include "samplers/token_texts.hpp"

namespace aleator::llama {

// Keeps some, in order, and returns the sum of their p.
template <typename Kept>
static float keep_some(Row& row, Kept kept) {
  Candidate* c = row.list();
  float sum = 0;
  int64_t n = 0;
  for (int64_t i = 0; i < row.size(); ++i)
    if (kept(c[i])) {
      sum += c[i].p;
      c[n++] = c[i];
    }
  row.truncate(n);
  return sum;
}

static void normalise(Row& row, float sum) {
  Candidate* c = row.list();
  for (int64_t i = 0; i < row.size(); ++i) c[i].p /= sum;
}

// Where one token's text begins another's, the more likely of the two takes over the other's
// probability.
static void merge_prefixes(Candidate* c, int64_t n, const InfillVocabulary& vocabulary) {
  for (int64_t i = 0; i < n; ++i) {
    const std::string_view prefix = vocabulary.text(c[i].id);
    if (prefix.empty()) continue;
    for (int64_t j = 0; j < n && c[i].logit != -infinity; ++j) {
      if (i == j || c[j].logit == -infinity || !vocabulary.text(c[j].id).starts_with(prefix))
        continue;
      Candidate &into = c[j].p > c[i].p ? c[j] : c[i], &from = c[j].p > c[i].p ? c[i] : c[j];
      into.p += from.p;
      from.logit = -infinity;
      from.p = 0;
    }
  }
}

static void infill(Row& row, const std::shared_ptr<const InfillVocabulary>& vocabulary) {
  row.softmax(true);
  float ending = 0, text = 0;
  Candidate* c = row.list();
  for (int64_t i = 0; i < row.size(); ++i) (vocabulary->ends(c[i].id) ? ending : text) += c[i].p;
  if (3 * ending * float(row.size()) > text)
    return normalise(row,
                     keep_some(row, [&](const Candidate& x) { return vocabulary->ends(x.id); }));
  merge_prefixes(c, row.size(), *vocabulary);
  int64_t texts = 0;
  // Drops text tokens below the threshold.
  const auto filter = [&](float threshold) {
    texts = 0;
    return keep_some(row, [&](const Candidate& x) {
      if (vocabulary->ends(x.id)) return true;
      const bool kept = !(x.p < threshold);
      texts += kept;
      return kept;
    });
  };
  const float sum = filter(0.2f);
  if (texts) {
    normalise(row, sum);
    const float least = float(1.0 / double(texts + 1));
    return normalise(row, filter(least));
  }
  c[0].id = vocabulary->end_of_turn;
  c[0].logit = 1;
  row.truncate(1);
}

ALEATOR_BIND(llama_infill) {
  bind_stateless<infill, LlamaSampler>(m, "LlamaInfill", "vocabulary"_a);
}

}  // namespace aleator::llama
