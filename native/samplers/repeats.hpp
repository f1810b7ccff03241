// DRY's search: where the newest tokens repeat an earlier run, and which token followed there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "samplers/sampler.hpp"
#include "samplers/suffixes.hpp"

namespace aleator {

class Repeats {
 public:
  // Breakers: token sequences; the first token of each is its head.
  Repeats(int64_t allowed, int64_t last_n, const std::vector<std::vector<int32_t>>& breakers)
      : allowed_(allowed), last_n_(last_n), suffixes_(std::max<int64_t>(allowed, 1)) {
    for (const auto& b : breakers) {
      if (b.empty()) continue;
      tails_[b[0]].emplace_back(b.begin() + 1, b.end());
      longest_tail_ = std::max(longest_tail_, static_cast<int64_t>(b.size()) - 1);
    }
  }

  // Before the last token is taken off, and when all are.
  void unaccept(const History& history) {
    const auto left = static_cast<int64_t>(history.tokens.size()) - 1;
    if (suffixes_.size() > left) suffixes_.pop();
    const int64_t settled = std::max<int64_t>(0, left - longest_tail_);
    if (static_cast<int64_t>(breakers_.size()) > settled) breakers_.resize(settled);
  }
  void reset() {
    suffixes_.clear();
    breakers_.clear();
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
    // Nothing is known of what follows runs of no token; and in a short window looking is cheap.
    if (n == all && allowed_ > 0 && (last_n_ < 0 || last_n_ > short_window)) {
      const int64_t limit = since_breaker(tokens);
      if (limit < allowed_) return false;
      for (auto i = suffixes_.size(); i < all; ++i) suffixes_.push(tokens[i]);
      suffixes_.following(limit, longest_);
    } else {
      const int64_t limit = uninterrupted(recent, n);
      if (limit < allowed_) return false;
      collect(recent, n, limit);
    }
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

  static constexpr int64_t short_window = 512;

  // The length of the longest tail with which the token i places back is a breaker; -1: it is none.
  template <typename Recent>
  int64_t tail_at(Recent recent, int64_t i) const {
    const auto breaker = tails_.find(recent(i));
    if (breaker == tails_.end()) return -1;
    int64_t longest = -1;
    for (const auto& tail : breaker->second) {
      const auto length = static_cast<int64_t>(tail.size());
      if (length <= longest || length > i) continue;
      bool matches = true;
      for (int64_t j = 0; j < length && matches; ++j) matches = tail[j] == recent(i - 1 - j);
      if (matches) longest = length;
    }
    return longest;
  }

  // uninterrupted() of the whole history, which remembers the breakers that nothing can change any
  // more: those with enough tokens after them for every tail.
  int64_t since_breaker(const std::vector<int32_t>& tokens) {
    const auto all = static_cast<int64_t>(tokens.size());
    if (tails_.empty()) return all;
    const auto recent = [&](int64_t i) { return tokens[all - 1 - i]; };
    const int64_t open = std::min(all, longest_tail_);
    for (auto at = static_cast<int64_t>(breakers_.size()); at < all - open; ++at) {
      const bool breaks = tail_at(recent, all - 1 - at) >= 0;
      breakers_.push_back(breaks ? at : at > 0 ? breakers_[at - 1] : -1);
    }
    for (int64_t i = 0; i < open; ++i)
      if (const int64_t tail = tail_at(recent, i); tail >= 0) return i - tail;
    if (open == all || breakers_[all - open - 1] < 0) return all;
    const int64_t i = all - 1 - breakers_[all - open - 1];
    return i - tail_at(recent, i);
  }

  // How many of the newest tokens stand before the nearest sequence breaker.
  template <typename Recent>
  int64_t uninterrupted(Recent recent, int64_t n) const {
    if (tails_.empty()) return n;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t tail = tail_at(recent, i);
      if (tail >= 0) return i - tail;
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

  int64_t allowed_, last_n_, longest_tail_ = 0;
  std::unordered_map<int32_t, std::vector<std::vector<int32_t>>> tails_;
  std::vector<int64_t> z_;
  std::unordered_map<int32_t, int64_t> longest_;
  std::vector<int32_t> tokens_;
  // Of a whole history, as far as it was looked at.
  Suffixes suffixes_;
  std::vector<int64_t> breakers_;  // by place: where the nearest breaker up to it is, or -1
};

}  // namespace aleator
