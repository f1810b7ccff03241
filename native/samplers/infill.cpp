// Contract: src/aleator/samplers/infill.py
#include "samplers/infill.hpp"

#include <algorithm>
#include <numeric>

#include "rng/fixed.hpp"
#include "samplers/making.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

constexpr int64_t most_infill_candidates = 4096;  // every pair of them is compared

class Infill : public Cloned<Infill> {
 public:
  explicit Infill(std::shared_ptr<const InfillVocabulary> vocabulary)
      : vocabulary_(std::move(vocabulary)) {}

  void apply(Candidates& c, const Step&) override {
    const auto n = c.count();
    if (n > most_infill_candidates)
      throw LogitsError("infill compares every pair of candidates, and there are ", n,
                        ": put top_k or top_p before it, at most 4,096 may be left");
    const auto& weights = c.weights();
    mass_.assign(weights.begin(), weights.end());
    const auto& ids = c.ids();
    u128 ending = 0, text = 0;
    for (size_t i = 0; i < ids.size(); ++i) (vocabulary_->ends(ids[i]) ? ending : text) += mass_[i];
    if (3 * ending * static_cast<u128>(n) > text)
      return c.keep_if([&](size_t i) { return vocabulary_->ends(c.ids()[i]); });
    merge_prefixes(c);
    const u128 total = ending + text;
    int64_t texts = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (vocabulary_->ends(ids[i])) continue;
      if (5 * static_cast<u128>(mass_[i]) < total) mass_[i] = 0;
      texts += mass_[i] != 0;
    }
    if (!texts) return c.become(vocabulary_->end_of_turn);
    const u128 left = std::accumulate(mass_.begin(), mass_.end(), u128{0});
    c.keep_if([&](size_t i) {
      return vocabulary_->ends(c.ids()[i]) ||
             (mass_[i] && static_cast<u128>(mass_[i]) * static_cast<u128>(texts + 1) >= left);
    });
  }

 private:
  // Where one token's text begins another's, the heavier of the two takes over the other's mass. In
  // the order: each candidate in turn against all others.
  void merge_prefixes(const Candidates& c) {
    const auto& ids = c.ids();
    order_.resize(ids.size());
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
      return order_key(c.logits()[a], ids[a]) > order_key(c.logits()[b], ids[b]);
    });
    for (const size_t i : order_) {
      const std::string_view prefix = vocabulary_->text(ids[i]);
      if (prefix.empty()) continue;
      for (const size_t j : order_) {
        if (!mass_[i]) break;
        if (i == j || !mass_[j] || !vocabulary_->text(ids[j]).starts_with(prefix)) continue;
        const bool takes = mass_[j] > mass_[i];
        const size_t into = takes ? j : i, from = takes ? i : j;
        mass_[into] += mass_[from];
        mass_[from] = 0;
      }
    }
  }

  std::shared_ptr<const InfillVocabulary> vocabulary_;
  std::vector<uint64_t> mass_;
  std::vector<size_t> order_;
};

ALEATOR_BIND(sampler_infill) {
  nb::class_<InfillVocabulary>(m, "InfillVocabulary")
      .def(nb::init<const nb::list&, const std::vector<int32_t>&, int32_t>(), "pieces"_a, "eog"_a,
           "end_of_turn"_a);
  bind_sampler<Infill(std::shared_ptr<const InfillVocabulary>)>(m, "Infill", "vocabulary"_a);
}

}  // namespace aleator
