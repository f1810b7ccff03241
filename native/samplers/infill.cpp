// Contract: src/aleator/samplers/infill.py
#include <algorithm>
#include <functional>
#include <numeric>

#include "rng/fixed.hpp"
#include "samplers/making.hpp"
#include "samplers/token_texts.hpp"

namespace aleator {

constexpr int64_t most_infill_candidates = 4096;  // every pair of them is compared

struct InfillRoom {
  std::vector<uint64_t> mass;  // of the candidates
  std::vector<size_t> order;   // of their places
};

// Where one token's text begins another's, the heavier of the two takes over the other's mass. In
// the order: each candidate in turn against all others.
static void merge_prefixes(const Candidates& c, const InfillVocabulary& vocabulary,
                           InfillRoom& room) {
  auto& [mass, order] = room;
  const auto& ids = c.ids();
  order.resize(ids.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, std::greater<>(),
                    [&](size_t i) { return order_key(c.logits()[i], c.ids()[i]); });
  for (const size_t i : order) {
    const std::string_view prefix = vocabulary.text(ids[i]);
    if (prefix.empty()) continue;
    for (const size_t j : order) {
      if (!mass[i]) break;
      if (i == j || !mass[j] || !vocabulary.text(ids[j]).starts_with(prefix)) continue;
      const bool takes = mass[j] > mass[i];
      const size_t into = takes ? j : i, from = takes ? i : j;
      mass[into] += mass[from];
      mass[from] = 0;
    }
  }
}

static void infill(Candidates& c, InfillRoom& room,
                   const std::shared_ptr<const InfillVocabulary>& vocabulary) {
  const auto n = c.count();
  if (n > most_infill_candidates)
    throw LogitsError("infill compares every pair of candidates, and there are ", n,
                      ": put top_k or top_p before it, at most 4,096 may be left");
  const auto& weights = c.weights();
  auto& mass = room.mass;
  mass.assign(weights.begin(), weights.end());
  const auto& ids = c.ids();
  u128 ending = 0, text = 0;
  for (size_t i = 0; i < ids.size(); ++i) (vocabulary->ends(ids[i]) ? ending : text) += mass[i];
  if (3 * ending * static_cast<u128>(n) > text)
    return c.keep_if([&](size_t i) { return vocabulary->ends(c.ids()[i]); });
  merge_prefixes(c, *vocabulary, room);
  const u128 total = ending + text;
  int64_t texts = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (vocabulary->ends(ids[i])) continue;
    if (5 * static_cast<u128>(mass[i]) < total) mass[i] = 0;
    texts += mass[i] != 0;
  }
  if (!texts) return c.become(vocabulary->end_of_turn);
  const u128 left = std::accumulate(mass.begin(), mass.end(), u128{0});
  c.keep_if([&](size_t i) {
    return vocabulary->ends(c.ids()[i]) ||
           (mass[i] && static_cast<u128>(mass[i]) * static_cast<u128>(texts + 1) >= left);
  });
}

ALEATOR_BIND(sampler_infill) {
  nb::class_<InfillVocabulary>(m, "InfillVocabulary")
      .def(nb::init<const nb::list&, const std::vector<int32_t>&, int32_t>(), "pieces"_a, "eog"_a,
           "end_of_turn"_a);
  bind_stateless<infill>(m, "Infill", "vocabulary"_a);
}

}  // namespace aleator
