// How often each token stands in the last n of a history; -1 is all of it.
#pragma once

#include <cstdint>
#include <vector>

#include "samplers/sampler.hpp"

namespace aleator {

class WindowCounts {
 public:
  explicit WindowCounts(int64_t last_n) : last_n_(last_n) {}

  void accept(const History &h) {
    const int64_t n = static_cast<int64_t>(h.tokens.size());
    if (last_n_ >= 0 && n > last_n_) remove(h.tokens[n - 1 - last_n_]);
    add(h.tokens[n - 1]);
  }
  void unaccept(const History &h) {
    const int64_t n = static_cast<int64_t>(h.tokens.size());
    remove(h.tokens[n - 1]);
    if (last_n_ >= 0 && n > last_n_) add(h.tokens[n - 1 - last_n_]);
  }
  void reset() {
    for (const int32_t token : distinct_) counts_[token] = 0;
    distinct_.clear();
  }

  const std::vector<int32_t> &distinct() const { return distinct_; }
  int32_t count(int32_t token) const {
    return token < static_cast<int32_t>(counts_.size()) ? counts_[token] : 0;
  }

 private:
  void add(int32_t token) {
    if (token >= static_cast<int32_t>(counts_.size())) {
      counts_.resize(token + 1);
      place_.resize(token + 1);
    }
    if (counts_[token]++ == 0) {
      place_[token] = static_cast<int32_t>(distinct_.size());
      distinct_.push_back(token);
    }
  }
  void remove(int32_t token) {
    if (--counts_[token] == 0) {
      const int32_t last = distinct_.back();
      distinct_[place_[token]] = last;
      place_[last] = place_[token];
      distinct_.pop_back();
    }
  }

  int64_t last_n_;
  std::vector<int32_t> counts_, place_, distinct_;  // per token; per token; tokens with a count
};

}  // namespace aleator
