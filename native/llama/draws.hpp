// A sampler's own random numbers: MT19937 that can go back.
#pragma once

#include <cmath>
#include <cstdint>

#include "llama/sampler.hpp"
#include "rng/mt19937.hpp"

namespace aleator::llama {

class Draws {
 public:
  explicit Draws(uint32_t seed) : seed_(seed), now_(seed), recent_{now_, 0}, older_{now_, 0} {}

  double uniform_double() {
    count(2);
    return now_.uniform_double();
  }
  float uniform_float() {
    count(1);
    return now_.uniform_float();
  }

  uint64_t words() const { return words_; }  // drawn since the seed
  // To an earlier count of words: exact at any distance, and cheap where one of the copies is not
  // too old.
  void rewind(uint64_t words) {
    if (words == words_) return;
    const Copy from = recent_.words <= words  ? recent_
                      : older_.words <= words ? older_
                                              : Copy{Mt19937(seed_), 0};
    now_ = from.engine;
    now_.discard(words - from.words);
    words_ = words;
    recent_ = older_ = from;
  }
  void reset() { *this = Draws(seed_); }

 private:
  struct Copy {
    Mt19937 engine;
    uint64_t words;
  };
  static constexpr uint64_t interval = 2048;

  void count(uint64_t words) {
    if (words_ - recent_.words >= interval) {
      older_ = recent_;
      recent_ = {now_, words_};
    }
    words_ += words;
  }

  uint32_t seed_;
  Mt19937 now_;
  uint64_t words_ = 0;
  Copy recent_, older_;
};

// A sampler whose only state beyond the history is what it has drawn, and numbers that this moves.
template <typename Derived>
class Drawing : public LlamaCloned<Derived> {
 public:
  explicit Drawing(uint32_t seed) : draws_(seed) {}
  void reset() override {
    draws_.reset();
    now_ = start_;
  }
  void read_state(StateReader&, const History&) override {}  // state() tells all
  bool has_state() const override { return true; }
  State state() const override {
    State state = now_;
    state.words = draws_.words();
    return state;
  }
  void restore(const State& s) override {
    draws_.rewind(s.words);
    now_ = s;
  }

 protected:
  void start(const State& numbers) { now_ = start_ = numbers; }

  Draws draws_;
  State now_;  // but for the words

 private:
  State start_;
};

// The draw of mirostat and adaptive-p, as libstdc++'s discrete_distribution does it: weights
// normalised and summed in float64, the last sum set to 1, the first sum that reaches u.  One
// candidate consumes no random number. `p` must hold probabilities; a probability of zero is never
// chosen, not even by u = 0.
inline int64_t multinomial(Row& row, Draws& draws) {
  const Candidate* c = row.list();
  const int64_t n = row.size();
  if (n < 2) return 0;
  double total = 0;
  for (int64_t i = 0; i < n; ++i) total += c[i].p;
  const double u = draws.uniform_double();
  double sum = 0;
  int64_t last = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += c[i].p / total;
    if (c[i].p > 0) {
      if (sum >= u) return i;
      last = i;
    }
  }
  return last;
}

// What both versions of mirostat share: target, learning rate, mu, and the draw that moves it.
template <typename Derived>
class MirostatSampler : public Drawing<Derived> {
 public:
  MirostatSampler(float tau, float eta, uint32_t seed)
      : Drawing<Derived>(seed), tau_(tau), eta_(eta) {
    this->start({.a = 2 * tau});
  }
  float mu() const { return this->now_.a; }

 protected:
  // Keeps the first n and draws among them.
  void select(Row& row, int64_t n) {
    row.truncate(n);
    row.softmax(true);
    row.selected = multinomial(row, this->draws_);
    const float surprise = -std::log2(row.list()[row.selected].p);
    this->now_.a = mu() - eta_ * (surprise - tau_);
  }

 private:
  float tau_, eta_;
};

}  // namespace aleator::llama
