// Contract: src/aleator/samplers/dry.py
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "bind.hpp"
#include "rng/fixed.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class DRY : public Cloned<DRY> {
 public:
  // Breakers: token sequences; the first token of each is its head.
  DRY(double multiplier, double base, int64_t allowed, int64_t last_n,
      const std::vector<std::vector<int32_t>>& breakers)
      : multiplier_(multiplier), base_(base), allowed_(allowed), last_n_(last_n) {
    for (const auto& b : breakers)
      if (!b.empty()) tails_[b[0]].emplace_back(b.begin() + 1, b.end());
  }

  void apply(Candidates& c, const Step& step) override {
    if (multiplier_ == 0 || base_ < 1 || last_n_ == 0 || !step.history) return;
    const auto& tokens = step.history->tokens;
    const auto all = static_cast<int64_t>(tokens.size());
    const int64_t n = last_n_ < 0 ? all : std::min(all, last_n_);
    if (n <= allowed_ || n < 2) return;
    const auto recent = [&](int64_t i) { return tokens[all - 1 - i]; };  // 0 is the newest
    const int64_t limit = uninterrupted(recent, n);
    if (limit < allowed_) return;
    find_repeats(recent, n, limit);
    if (longest_.empty()) return;
    for (const auto& [token, length] : longest_) {
      const auto breaker = tails_.find(token);
      if (breaker != tails_.end() && std::any_of(breaker->second.begin(), breaker->second.end(),
                                                 [](const auto& tail) { return tail.empty(); }))
        continue;
      if (float* z = c.edit(token)) *z -= penalty(length - allowed_);
    }
    c.settle();
  }

 private:
  // How many of the newest tokens stand before the nearest sequence breaker.
  template <typename Recent>
  int64_t uninterrupted(Recent recent, int64_t n) const {
    for (int64_t i = 0; i < n; ++i) {
      const auto breaker = tails_.find(recent(i));
      if (breaker == tails_.end()) continue;
      int64_t longest = -1;
      for (const auto& tail : breaker->second) {
        const auto length = static_cast<int64_t>(tail.size());
        if (length <= longest || length > i) continue;
        bool matches = true;
        for (int64_t j = 0; j < length && matches; ++j) matches = tail[j] == recent(i - 1 - j);
        if (matches) longest = length;
      }
      if (longest >= 0) return i - longest;
    }
    return n;
  }

  // For every earlier place whose past equals the newest tokens for at least `allowed_` of them:
  // the token that followed there, with the longest such length.  The lengths are the Z function of
  // the reversed window.
  template <typename Recent>
  void find_repeats(Recent recent, int64_t n, int64_t limit) {
    z_.assign(n, 0);
    longest_.clear();
    int64_t left = 0, right = 0;  // the known match [left, right) that reaches furthest
    for (int64_t k = 1; k < n; ++k) {
      int64_t length = k < right ? std::min(right - k, z_[k - left]) : 0;
      while (k + length < n && recent(length) == recent(k + length)) ++length;
      z_[k] = length;
      if (k + length > right) left = k, right = k + length;
      const int64_t counted = std::min(length, limit);
      if (counted >= allowed_) {
        int64_t& best = longest_[recent(k - 1)];
        best = std::max(best, counted);
      }
    }
  }

  // multiplier * base^excess, by repeated squaring in float64, rounded to float32; never infinite.
  float penalty(int64_t excess) const {
    double power = 1, square = base_;
    for (int64_t e = excess; e; e >>= 1) {
      if (e & 1) power = std::min(power * square, 1e300);
      square = std::min(square * square, 1e300);
    }
    return static_cast<float>(std::clamp(multiplier_ * power, -3e38, 3e38));
  }

  double multiplier_, base_;
  int64_t allowed_, last_n_;
  std::unordered_map<int32_t, std::vector<std::vector<int32_t>>> tails_;
  std::vector<int64_t> z_;
  std::unordered_map<int32_t, int64_t> longest_;
};

ALEATOR_BIND(sampler_dry) {
  nb::class_<DRY, Sampler>(m, "DRY").def(
      nb::init<double, double, int64_t, int64_t, const std::vector<std::vector<int32_t>>&>(),
      nb::arg("dry_multiplier"), nb::arg("dry_base"), nb::arg("dry_allowed_length"),
      nb::arg("dry_penalty_last_n"), nb::arg("breakers"));
}

}  // namespace aleator
