// Contract: src/aleator/samplers/bad_words.py
#include <algorithm>

#include "bind.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class BadWords : public Cloned<BadWords> {
 public:
  explicit BadWords(std::vector<std::vector<int32_t>> sequences)
      : sequences_(std::move(sequences)) {
    for (const auto& sequence : sequences_) last_ = std::max(last_, sequence.back());
  }

  void apply(Candidates& c, const Step& step) override {
    require_token("bad_words", last_, c.n_vocab());
    banned_.clear();
    for (const auto& sequence : sequences_)
      if (before(step, sequence)) banned_.push_back(sequence.back());
    c.mask(banned_);
  }

 private:
  // Whether all tokens of the sequence but its last were just accepted.
  static bool before(const Step& step, const std::vector<int32_t>& sequence) {
    const size_t n = sequence.size() - 1;
    if (!n) return true;
    if (!step.history || step.history->tokens.size() < n) return false;
    return std::equal(sequence.begin(), sequence.end() - 1, step.history->tokens.end() - n);
  }

  std::vector<std::vector<int32_t>> sequences_;
  int32_t last_ = -1;
  std::vector<int32_t> banned_;
};

ALEATOR_BIND(sampler_bad_words) {
  nb::class_<BadWords, Sampler>(m, "BadWords")
      .def(nb::init<std::vector<std::vector<int32_t>>>(), "sequences"_a);
}

}  // namespace aleator
