// Contract: docs/llama-cpp.md
#include <algorithm>
#include <cmath>

#include "bind.hpp"
#include "llama/draws.hpp"

namespace aleator::llama {

class AdaptiveP : public Drawing<AdaptiveP> {
 public:
  AdaptiveP(float target, float decay, uint32_t seed)
      : Drawing(seed), target_(target), decay_(std::clamp(decay, 0.0f, 0.99f)) {
    start({.a = target_ / (1.0f - decay_), .b = 1.0f / (1.0f - decay_)});
  }

  void apply(Row& row, const History&) override {
    row.softmax(false);
    Candidate* c = row.list();
    if (target_ < 0) {
      row.selected = multinomial(row, draws_);
      return;
    }
    original_.resize(row.size());
    for (int64_t i = 0; i < row.size(); ++i) original_[i] = c[i].p;
    const float target = std::clamp(target_, 0.0f, 1.0f);
    const float wanted = now_.b == 0 ? target : 2 * target - average();
    const float adapted = std::clamp(wanted, 0.0f, 1.0f);
    for (int64_t i = 0; i < row.size(); ++i) {
      if (c[i].logit == -infinity) continue;
      const float d = std::abs((c[i].p - adapted) * (1.0f / 0.3f));
      c[i].logit = 5.0f - 10.0f * d * d / (1.0f + d);
    }
    row.softmax(false);
    row.selected = multinomial(row, draws_);
    now_.token = c[row.selected].id;
    now_.p = original_[row.selected];
  }

  void accept(const History& h) override {
    if (now_.token >= 0 && h.tokens.back() == now_.token) {
      now_.a = now_.p + decay_ * now_.a;
      now_.b = 1.0f + decay_ * now_.b;
    }
    now_.token = -1;
  }
  float average() const { return now_.a / now_.b; }  // of the probabilities of past tokens

 private:
  float target_, decay_;
  std::vector<float> original_;
};

ALEATOR_BIND(llama_adaptive_p) {
  nb::class_<AdaptiveP, LlamaSampler>(m, "LlamaAdaptiveP")
      .def(nb::init<float, float, uint32_t>(), "adaptive_target"_a, "adaptive_decay"_a, "seed"_a)
      .def_prop_ro("average", &AdaptiveP::average);
}

}  // namespace aleator::llama
