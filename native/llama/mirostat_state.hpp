// What both versions of mirostat share: target, learning rate, mu, and the draw that moves it.
#pragma once

#include <cmath>

#include "llama/draws.hpp"

namespace aleator::llama {

template <typename Derived>
class MirostatSampler : public Drawing<Derived> {
 public:
  MirostatSampler(float tau, float eta, uint32_t seed)
      : Drawing<Derived>(seed), tau_(tau), eta_(eta), mu_(2 * tau) {}

  void reset() override {
    mu_ = 2 * tau_;
    this->draws_.reset();
  }
  float mu() const { return mu_; }
  State state() const override { return {.words = this->draws_.words(), .a = mu_}; }
  void restore(const State& s) override {
    this->draws_.rewind(s.words);
    mu_ = s.a;
  }

 protected:
  // Keeps the first n and draws among them.
  void select(Row& row, int64_t n) {
    row.truncate(n);
    row.softmax(true);
    row.selected = multinomial(row, this->draws_);
    const float surprise = -std::log2(row.list()[row.selected].p);
    mu_ = mu_ - eta_ * (surprise - tau_);
  }

 private:
  float tau_, eta_, mu_;
};

}  // namespace aleator::llama
