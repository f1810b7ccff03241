// Contract: src/aleator/samplers/adaptive_p.py
#include <algorithm>
#include <cmath>

#include "bind.hpp"
#include "rng/fixed.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class AdaptiveP : public Cloned<AdaptiveP> {
 public:
  AdaptiveP(double target, double decay, uint64_t seed, uint32_t ordinal)
      : target_(target), decay_(decay), stream_{seed, ordinal} {
    reset();
  }

  void apply(Candidates& c, const Step& step) override {
    drawn_ = -1;
    if (target_ >= 0) {
      const auto& w = c.weights();
      uint64_t total = 0;
      for (const uint64_t weight : w) total += weight;
      probabilities_.resize(w.size());
      for (size_t i = 0; i < w.size(); ++i)
        probabilities_[i] =
            static_cast<float>(static_cast<double>(w[i]) / static_cast<double>(total));
      const auto wanted =
          static_cast<float>(std::clamp(2 * target_ - state_.sum / state_.weight, 0.0, 1.0));
      auto& z = c.edit_all();
      // A temperature that drowned some logits in -inf would have taken their candidates away.
      if (z.size() != probabilities_.size())
        throw LogitsError("adaptive_p: the temperature before it is too small for these logits");
      for (size_t i = 0; i < z.size(); ++i) {
        const float distance = std::fabs(probabilities_[i] - wanted) / contract::adaptive_width;
        const float square = distance * distance, above = contract::adaptive_slope * square;
        z[i] = contract::adaptive_peak - above / (1.0f + distance);
      }
      c.settle();
    }
    c.draw(uniform(Purpose::adaptive_p, stream_, step.position, step.completion));
    if (target_ >= 0) {
      drawn_ = c.selected;
      const auto at = std::lower_bound(c.ids().begin(), c.ids().end(), drawn_) - c.ids().begin();
      probability_ = probabilities_[at];
    }
  }

  void accept(const History& h) override {
    before_.push_back(state_);
    if (h.generated.back() && drawn_ >= 0 && h.tokens.back() == drawn_)
      state_ = {probability_ + decay_ * state_.sum, 1 + decay_ * state_.weight};
    drawn_ = -1;
  }
  void unaccept(const History&) override {
    state_ = before_.back();
    before_.pop_back();
    drawn_ = -1;
  }
  void reset() override {
    state_ = {std::clamp(target_, 0.0, 1.0) / (1 - decay_), 1 / (1 - decay_)};
    before_.clear();
    drawn_ = -1;
  }
  void write_state(StateWriter& out) const override {
    for (const State& s : before_) {
      out.put(s.sum);
      out.put(s.weight);
    }
    out.put(state_.sum);
    out.put(state_.weight);
    out.put(probability_);
    out.put(drawn_);
  }
  void read_state(StateReader& in, const History& history) override {
    before_.resize(history.tokens.size());
    for (State& s : before_) {
      s.sum = in.get<double>();
      s.weight = in.get<double>();
    }
    state_.sum = in.get<double>();
    state_.weight = in.get<double>();
    probability_ = in.get<double>();
    drawn_ = in.get<int32_t>();
    const auto wrong = [](const State& s) {
      return !std::isfinite(s.sum) || !std::isfinite(s.weight) || s.weight <= 0;
    };
    if (wrong(state_) || !std::isfinite(probability_) ||
        std::any_of(before_.begin(), before_.end(), wrong))
      in.refuse("the average of adaptive_p is none");
  }
  double average() const { return state_.sum / state_.weight; }
  // The two sums after each number of accepted tokens.
  std::vector<std::vector<double>> course() const {
    std::vector<std::vector<double>> all(2);
    const auto add = [&](const State& s) {
      all[0].push_back(s.sum);
      all[1].push_back(s.weight);
    };
    for (const State& s : before_) add(s);
    add(state_);
    return all;
  }

  void set_ordinal(uint32_t ordinal) override { stream_.ordinal = ordinal; }

 private:
  struct State {
    double sum, weight;  // of the probabilities of past tokens, older ones counting less
  };
  double target_, decay_, probability_ = 0;
  int32_t drawn_ = -1;
  Stream stream_;
  State state_{};
  std::vector<State> before_;
  std::vector<float> probabilities_;
};

ALEATOR_BIND(sampler_adaptive_p) {
  nb::class_<AdaptiveP, Sampler>(m, "AdaptiveP")
      .def(nb::init<double, double, uint64_t, uint32_t>(), "adaptive_target"_a, "adaptive_decay"_a,
           "seed"_a, "ordinal"_a)
      .def_prop_ro("average", &AdaptiveP::average)
      .def_prop_ro("course", &AdaptiveP::course);
}

}  // namespace aleator
