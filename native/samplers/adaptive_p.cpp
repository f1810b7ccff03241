// Contract: src/aleator/samplers/adaptive_p.py
#include <algorithm>
#include <cmath>

#include "bind.hpp"
#include "samplers/adapting.hpp"

namespace aleator {

// The numbers are the sum of the probabilities of past tokens and that of their weights: older ones
// count less.
class AdaptiveP : public Adapting<AdaptiveP, 2> {
 public:
  AdaptiveP(double target, double decay, uint64_t seed, uint32_t ordinal)
      : Adapting({std::clamp(target, 0.0, 1.0) / (1 - decay), 1 / (1 - decay)}, seed, ordinal),
        target_(target),
        decay_(decay) {}

  void apply(Candidates& c, const Step& step) override {
    if (target_ < 0) {
      draw(c, Purpose::adaptive_p, step);
      drawn_ = -1;
      return;
    }
    drawn_ = -1;
    const auto& w = c.weights();
    uint64_t total = 0;
    for (const uint64_t weight : w) total += weight;
    probabilities_.resize(w.size());
    for (size_t i = 0; i < w.size(); ++i) probabilities_[i] = float(double(w[i]) / double(total));
    const auto wanted = float(std::clamp(2 * target_ - average(), 0.0, 1.0));
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
    draw(c, Purpose::adaptive_p, step);
    const auto at = std::lower_bound(c.ids().begin(), c.ids().end(), drawn_) - c.ids().begin();
    noted_ = probabilities_[at];
  }
  double average() const { return now_[0] / now_[1]; }

 protected:
  Numbers moved() const override { return {noted_ + decay_ * now_[0], 1 + decay_ * now_[1]}; }
  void check(StateReader& in, const Numbers& numbers) const override {
    if (!std::isfinite(numbers[0]) || !std::isfinite(numbers[1]) || numbers[1] <= 0 ||
        !std::isfinite(noted_))
      in.refuse("the average of adaptive_p is none");
  }

 private:
  double target_, decay_;
  std::vector<float> probabilities_;
};

ALEATOR_BIND(sampler_adaptive_p) {
  nb::class_<AdaptiveP, Sampler>(m, "AdaptiveP")
      .def(nb::init<double, double, uint64_t, uint32_t>(), "adaptive_target"_a, "adaptive_decay"_a,
           "seed"_a, "ordinal"_a)
      .def_prop_ro("average", &AdaptiveP::average)
      .def_prop_ro("state_history", &AdaptiveP::state_history);
}

}  // namespace aleator
