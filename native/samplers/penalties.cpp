// Contract: src/aleator/samplers/penalties.py
#include "bind.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class Penalties : public Cloned<Penalties> {
 public:
  Penalties(int64_t last_n, float repetition, float frequency, float presence)
      : last_n_(last_n), repetition_(repetition), frequency_(frequency), presence_(presence) {}

  void apply(Candidates &c, const Step &) override {
    if (!active() || distinct_.empty()) return;
    for (const int32_t token : distinct_) {
      float *z = c.edit(token);
      if (!z) continue;
      const float count = static_cast<float>(counts_[token]);
      const float repeated = *z > 0 ? *z / repetition_ : *z * repetition_;
      const float by_count = count * frequency_;
      *z = repeated - (by_count + presence_);
    }
    c.settle();
  }

  void accept(const History &h) override {
    if (!active()) return;
    const int64_t n = static_cast<int64_t>(h.tokens.size());
    if (last_n_ > 0 && n > last_n_) remove(h.tokens[n - 1 - last_n_]);
    add(h.tokens[n - 1]);
  }

  void unaccept(const History &h) override {
    if (!active()) return;
    const int64_t n = static_cast<int64_t>(h.tokens.size());
    remove(h.tokens[n - 1]);
    if (last_n_ > 0 && n > last_n_) add(h.tokens[n - 1 - last_n_]);
  }

  void reset() override {
    for (const int32_t token : distinct_) counts_[token] = 0;
    distinct_.clear();
  }

 private:
  bool active() const {
    return last_n_ != 0 && (repetition_ != 1 || frequency_ != 0 || presence_ != 0);
  }

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

  int64_t last_n_;  // -1: the whole history
  float repetition_, frequency_, presence_;
  std::vector<int32_t> counts_, place_, distinct_;  // per token; per token; tokens with a count
};

ALEATOR_BIND(sampler_penalties) {
  nb::class_<Penalties, Sampler>(m, "Penalties")
      .def(nb::init<int64_t, float, float, float>(), nb::arg("penalty_last_n"),
           nb::arg("repetition_penalty"), nb::arg("frequency_penalty"),
           nb::arg("presence_penalty"));
}

}  // namespace aleator
