// What mirostat and adaptive-p have in common: numbers that accepted draws move, and that a
// rollback restores.
#pragma once

#include <array>
#include <cmath>
#include <vector>

#include "rng/fixed.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

template <typename Derived, size_t n>
class Adapting : public Cloned<Derived> {
 public:
  using Numbers = std::array<double, n>;

  Adapting(const Numbers& start, uint64_t seed, uint32_t ordinal)
      : now_(start), start_(start), stream_{seed, ordinal} {}

  void accept(const History& h) override {
    before_.push_back(now_);
    if (h.generated.back() && drawn_ >= 0 && h.tokens.back() == drawn_) now_ = moved();
    drawn_ = -1;
  }
  void unaccept(const History&) override {
    now_ = before_.back();
    before_.pop_back();
    drawn_ = -1;
  }
  void reset() override {
    now_ = start_;
    before_.clear();
    drawn_ = -1;
  }
  void set_ordinal(uint32_t ordinal) override { stream_.ordinal = ordinal; }
  void write_state(StateWriter& out) const override {
    for (const Numbers& numbers : before_) out.put_all(numbers);
    out.put_all(now_);
    out.put(noted_, drawn_);
  }
  void read_state(StateReader& in, const History& history) override {
    before_.resize(history.tokens.size());
    for (Numbers& numbers : before_)
      for (double& x : numbers) in.read(x);
    for (double& x : now_) in.read(x);
    in.read(noted_, drawn_);
    check(in, now_);
    for (const Numbers& numbers : before_) check(in, numbers);
  }
  // Each number after each number of accepted tokens.
  std::vector<std::vector<double>> state_history() const {
    std::vector<std::vector<double>> all(n);
    for (size_t i = 0; i < n; ++i) {
      for (const Numbers& numbers : before_) all[i].push_back(numbers[i]);
      all[i].push_back(now_[i]);
    }
    return all;
  }

 protected:
  virtual Numbers moved() const = 0;  // by the draw that noted_ tells of
  virtual void check(StateReader& in, const Numbers& numbers) const = 0;

  auto draw(Candidates& c, Purpose purpose, const Step& step) {
    const auto drawn = c.draw(uniform(purpose, stream_, step.position, step.completion));
    drawn_ = c.selected;
    return drawn;
  }

  Numbers now_;
  double noted_ = 0;  // what is to be known of the token that was drawn
  int32_t drawn_ = -1;

 private:
  Numbers start_;
  Stream stream_;
  std::vector<Numbers> before_;  // each accepted token
};

constexpr double q32 = 4294967296.0;

// Both versions of mirostat: mu, and the surprise of the token that was drawn.
template <typename Derived>
class MirostatBase : public Adapting<Derived, 1> {
 public:
  MirostatBase(double tau, double eta, uint64_t seed, uint32_t ordinal)
      : Adapting<Derived, 1>({2 * tau}, seed, ordinal), tau_(tau), eta_(eta) {}
  double mu() const { return this->now_[0]; }

 protected:
  // Draws among what is left and notes how surprising the token was there.
  void select(Candidates& c, Purpose purpose, const Step& step) {
    const auto drawn = this->draw(c, purpose, step);
    this->noted_ = double(log2_q32(drawn.total) - log2_q32(drawn.weight)) / q32;
  }
  std::array<double, 1> moved() const override { return {mu() - eta_ * (this->noted_ - tau_)}; }
  void check(StateReader& in, const std::array<double, 1>& mu) const override {
    if (std::isnan(mu[0]) || std::isnan(this->noted_)) in.refuse("mu of mirostat is not a number");
  }

 private:
  double tau_, eta_;
};

}  // namespace aleator
