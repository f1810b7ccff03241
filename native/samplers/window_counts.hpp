// How often each token stands in the last n of a history; -1 is all of it.
#pragma once

#include <cstdint>
#include <vector>

#include "samplers/sampler.hpp"

namespace aleator {

class WindowCounts {
 public:
  struct Count {
    int32_t all = 0, generated = 0, place = 0;  // place: its index among the distinct tokens
  };

  explicit WindowCounts(int64_t last_n) : last_n_(last_n) {}

  void accept(const History& h) {
    const int64_t n = int64_t(h.tokens.size());
    if (last_n_ >= 0 && n > last_n_) remove(h, n - 1 - last_n_);
    add(h, n - 1);
  }
  void unaccept(const History& h) {
    const int64_t n = int64_t(h.tokens.size());
    remove(h, n - 1);
    if (last_n_ >= 0 && n > last_n_) add(h, n - 1 - last_n_);
  }
  void reset() {
    for (const int32_t token : distinct_) counts_[token] = {};
    distinct_.clear();
  }

  const std::vector<int32_t>& distinct() const { return distinct_; }
  Count count(int32_t token) const {
    return token < int32_t(counts_.size()) ? counts_[token] : Count{};
  }

 private:
  void add(const History& h, int64_t i) {
    const int32_t token = h.tokens[i];
    if (token >= int32_t(counts_.size())) counts_.resize(token + 1);
    Count& count = counts_[token];
    count.generated += h.generated[i];
    if (count.all++ == 0) {
      count.place = int32_t(distinct_.size());
      distinct_.push_back(token);
    }
  }

  void remove(const History& h, int64_t i) {
    Count& count = counts_[h.tokens[i]];
    count.generated -= h.generated[i];
    if (--count.all == 0) {
      const int32_t last = distinct_.back();
      distinct_[count.place] = last;
      counts_[last].place = count.place;
      distinct_.pop_back();
    }
  }

  int64_t last_n_;
  std::vector<Count> counts_;      // by token
  std::vector<int32_t> distinct_;  // tokens in the window
};

// What the penalties of both kinds of chain keep; Base is the chain's sampler.
template <typename Base>
class Penalised : public Base {
 public:
  Penalised(int64_t last_n, float repetition, float frequency, float presence)
      : active_(last_n != 0 && (repetition != 1 || frequency != 0 || presence != 0)),
        repetition_(repetition),
        frequency_(frequency),
        presence_(presence),
        window_(last_n) {}

  void accept(const History& h) override {
    if (active_) window_.accept(h);
  }
  void unaccept(const History& h) override {
    if (active_) window_.unaccept(h);
  }
  void reset() override { window_.reset(); }

 protected:
  bool active_;
  float repetition_, frequency_, presence_;
  WindowCounts window_;
};

}  // namespace aleator
