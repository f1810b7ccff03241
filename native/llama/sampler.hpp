// What a sampler of a LlamaChain is.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>

#include "llama/row.hpp"
#include "samplers/sampler.hpp"

namespace aleator::llama {

// What apply and accept change in a sampler beyond what the history determines.
struct State {
  uint64_t words = 0;  // random words drawn
  float a = 0, b = 0;  // mu, or the two sums of adaptive-p
  int32_t token = -1;  // adaptive-p: the token drawn last, and its probability
  float p = 0;

  void write(StateWriter& out) const { out.put(words, a, b, token, p); }
  // More words are drawn again from the seed, so a made-up number must not take for ever.
  static constexpr uint64_t max_words = uint64_t{1} << 30;
  static State read(StateReader& in) {
    State s;
    in.read(s.words, s.a, s.b, s.token, s.p);
    if (s.words > max_words || !std::isfinite(s.a) || !std::isfinite(s.b) || !std::isfinite(s.p))
      in.refuse("a sampler's numbers are out of range");
    return s;
  }
};

class LlamaSampler : public Listener {
 public:
  using When = History;
  virtual void apply(Row& row, const History& history) = 0;
  virtual bool has_state() const { return false; }
  virtual State state() const { return {}; }
  virtual void restore(const State&) {}
  virtual std::shared_ptr<LlamaSampler> clone() const = 0;
};

template <typename Derived>
using LlamaCloned = Cloned<Derived, LlamaSampler>;

}  // namespace aleator::llama
