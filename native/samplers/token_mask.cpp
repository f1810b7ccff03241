// Contract: src/aleator/samplers/token_mask.py
#include "bind.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class TokenMask : public Cloned<TokenMask> {
 public:
  explicit TokenMask(std::optional<std::vector<uint32_t>> words)
      : all_(!words), words_(words ? std::move(*words) : std::vector<uint32_t>()) {}

  void apply(Candidates& c, const Step&) override {
    if (!all_ && !c.keep_allowed(words_))
      throw LogitsError("the token mask allows none of the tokens that are left");
  }

 private:
  bool all_;
  std::vector<uint32_t> words_;  // one bit a token; tokens past the end are masked
};

ALEATOR_BIND(sampler_token_mask) {
  nb::class_<TokenMask, Sampler>(m, "TokenMask")
      .def(nb::init<std::optional<std::vector<uint32_t>>>(), "words"_a.none());
}

}  // namespace aleator
