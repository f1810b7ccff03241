// DRY's search: where the newest tokens repeat an earlier run, and which token followed there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "samplers/sampler.hpp"

namespace aleator {

class Repeats {
 public:
  // Breakers: token sequences; the first token of each is its head.
  Repeats(int64_t allowed, int64_t last_n, const std::vector<std::vector<int32_t>>& breakers)
      : allowed_(allowed), last_n_(last_n) {
    for (const auto& b : breakers)
      if (!b.empty()) tails_[b[0]].emplace_back(b.begin() + 1, b.end());
  }

  // Fills found(); false if the window, or what follows the last breaker in it, is too short to
  // search.
  bool find(const History& history) {
    tokens_.clear();
    longest_.clear();
    const auto& tokens = history.tokens;
    const auto all = static_cast<int64_t>(tokens.size());
    const int64_t n = last_n_ < 0 ? all : std::min(all, last_n_);
    if (n <= allowed_) return false;
    const auto recent = [&](int64_t i) { return tokens[all - 1 - i]; };  // 0 is the newest
    const int64_t limit = uninterrupted(recent, n);
    if (limit < allowed_) return false;
    collect(recent, n, limit);
    for (const auto& [token, length] : longest_)
      if (!breaks(token)) tokens_.push_back(token);
    return true;
  }

  // The tokens that would continue a repetition; those that are breakers by themselves left out.
  const std::vector<int32_t>& found() const { return tokens_; }
  // By how much the longest repetition before a found token exceeds the allowed length; -1 for
  // other tokens.
  int64_t excess(int32_t token) const {
    const auto at = longest_.find(token);
    return at == longest_.end() || breaks(token) ? -1 : at->second - allowed_;
  }

 private:
  bool breaks(int32_t token) const {
    const auto breaker = tails_.find(token);
    return breaker != tails_.end() && std::any_of(breaker->second.begin(), breaker->second.end(),
                                                  [](const auto& tail) { return tail.empty(); });
  }

  // How many of the newest tokens stand before the nearest sequence breaker.
  template <typename Recent>
  int64_t uninterrupted(Recent recent, int64_t n) const {
    if (tails_.empty()) return n;
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
  void collect(Recent recent, int64_t n, int64_t limit) {
    z_.assign(n, 0);
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

  int64_t allowed_, last_n_;
  std::unordered_map<int32_t, std::vector<std::vector<int32_t>>> tails_;
  std::vector<int64_t> z_;
  std::unordered_map<int32_t, int64_t> longest_;
  std::vector<int32_t> tokens_;
};

}  // namespace aleator
