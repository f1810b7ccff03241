// What both versions of mirostat share: mu, which accepted draws move and a rollback restores.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "rng/fixed.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

constexpr double q32 = 4294967296.0;

template <typename Derived>
class MirostatState : public Cloned<Derived> {
 public:
  MirostatState(double tau, double eta, uint64_t seed, uint32_t ordinal)
      : tau_(tau), eta_(eta), mu_(2 * tau), stream_{seed, ordinal} {}

  void accept(const History& h) override {
    before_.push_back(mu_);
    if (h.generated.back() && drawn_ >= 0 && h.tokens.back() == drawn_)
      mu_ = mu_ - eta_ * (surprise_ - tau_);
    drawn_ = -1;
  }
  void unaccept(const History&) override {
    mu_ = before_.back();
    before_.pop_back();
    drawn_ = -1;
  }
  void reset() override {
    mu_ = 2 * tau_;
    before_.clear();
    drawn_ = -1;
  }
  void set_ordinal(uint32_t ordinal) override { stream_.ordinal = ordinal; }
  void write_state(StateWriter& out) const override {
    out.put_all(before_);
    out.put(mu_);
    out.put(surprise_);
    out.put(drawn_);
  }
  void read_state(StateReader& in, const History& history) override {
    before_ = in.get_all<double>(history.tokens.size());
    mu_ = in.get<double>();
    surprise_ = in.get<double>();
    drawn_ = in.get<int32_t>();
    const auto wrong = [](double x) { return std::isnan(x); };
    if (wrong(mu_) || wrong(surprise_) || std::any_of(before_.begin(), before_.end(), wrong))
      in.refuse("mu of mirostat is not a number");
  }
  double mu() const { return mu_; }
  // After each number of accepted tokens.
  std::vector<double> course() const {
    std::vector<double> all = before_;
    all.push_back(mu_);
    return all;
  }

 protected:
  // Draws among what is left and notes how surprising the token was there.
  void select(Candidates& c, Purpose purpose, const Step& step) {
    const auto drawn = c.draw(uniform(purpose, stream_, step.position, step.completion));
    drawn_ = c.selected;
    surprise_ = static_cast<double>(log2_q32(drawn.total) - log2_q32(drawn.weight)) / q32;
  }

  double tau_, eta_, mu_, surprise_ = 0;
  int32_t drawn_ = -1;
  Stream stream_;
  std::vector<double> before_;  // mu before each accepted token
};

}  // namespace aleator
