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
    start();
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
    const float wanted = total_ == 0 ? target : 2 * target - weighted_ / total_;
    const float adapted = std::clamp(wanted, 0.0f, 1.0f);
    for (int64_t i = 0; i < row.size(); ++i) {
      if (c[i].logit == -infinity) continue;
      const float d = std::abs((c[i].p - adapted) * (1.0f / 0.3f));
      c[i].logit = 5.0f - 10.0f * d * d / (1.0f + d);
    }
    row.softmax(false);
    row.selected = multinomial(row, draws_);
    drawn_ = c[row.selected].id;
    drawn_p_ = original_[row.selected];
  }

  void accept(const History& h) override {
    if (drawn_ >= 0 && h.tokens.back() == drawn_) {
      weighted_ = drawn_p_ + decay_ * weighted_;
      total_ = 1.0f + decay_ * total_;
    }
    drawn_ = -1;
  }

  void reset() override {
    draws_.reset();
    start();
  }
  float average() const { return weighted_ / total_; }
  State state() const override { return {draws_.words(), weighted_, total_, drawn_, drawn_p_}; }
  void restore(const State& s) override {
    draws_.rewind(s.words);
    weighted_ = s.a;
    total_ = s.b;
    drawn_ = s.token;
    drawn_p_ = s.p;
  }

 private:
  void start() {
    weighted_ = target_ / (1.0f - decay_);
    total_ = 1.0f / (1.0f - decay_);
    drawn_ = -1;
  }

  float target_, decay_, weighted_ = 0, total_ = 0, drawn_p_ = 0;
  int32_t drawn_ = -1;
  std::vector<float> original_;
};

ALEATOR_BIND(llama_adaptive_p) {
  nb::class_<AdaptiveP, LlamaSampler>(m, "LlamaAdaptiveP")
      .def(nb::init<float, float, uint32_t>(), "adaptive_target"_a, "adaptive_decay"_a, "seed"_a)
      .def_prop_ro("average", &AdaptiveP::average);
}

}  // namespace aleator::llama
