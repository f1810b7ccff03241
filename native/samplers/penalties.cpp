// Contract: src/aleator/samplers/penalties.py
#include "bind.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class Penalties : public Cloned<Penalties> {
 public:
  // Whether prompt tokens count for the repetition penalty, and for the other two.
  Penalties(int64_t last_n, float repetition, float frequency, float presence, bool prompt_repeats,
            bool prompt_counts)
      : last_n_(last_n),
        repetition_(repetition),
        frequency_(frequency),
        presence_(presence),
        prompt_repeats_(prompt_repeats),
        prompt_counts_(prompt_counts) {}

  void apply(Candidates& c, const Step&) override {
    if (!active() || distinct_.empty()) return;
    for (const int32_t token : distinct_) {
      float* z = c.edit(token);
      if (!z) continue;
      const Count& count = counts_[token];
      if (prompt_repeats_ ? count.all : count.generated)
        *z = *z > 0 ? *z / repetition_ : *z * repetition_;
      if (const int32_t times = prompt_counts_ ? count.all : count.generated) {
        const float by_count = static_cast<float>(times) * frequency_;
        *z = *z - (by_count + presence_);
      }
    }
    c.settle();
  }

  void accept(const History& h) override {
    if (!active()) return;
    const int64_t n = static_cast<int64_t>(h.tokens.size());
    if (last_n_ > 0 && n > last_n_) remove(h, n - 1 - last_n_);
    add(h, n - 1);
  }

  void unaccept(const History& h) override {
    if (!active()) return;
    const int64_t n = static_cast<int64_t>(h.tokens.size());
    remove(h, n - 1);
    if (last_n_ > 0 && n > last_n_) add(h, n - 1 - last_n_);
  }

  void reset() override {
    for (const int32_t token : distinct_) counts_[token] = {};
    distinct_.clear();
  }

 private:
  struct Count {
    int32_t all = 0, generated = 0, place = 0;  // place: its index in distinct_
  };

  bool active() const {
    return last_n_ != 0 && (repetition_ != 1 || frequency_ != 0 || presence_ != 0);
  }

  void add(const History& h, int64_t i) {
    const int32_t token = h.tokens[i];
    if (token >= static_cast<int32_t>(counts_.size())) counts_.resize(token + 1);
    Count& count = counts_[token];
    count.generated += h.generated[i];
    if (count.all++ == 0) {
      count.place = static_cast<int32_t>(distinct_.size());
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

  int64_t last_n_;  // -1: the whole history
  float repetition_, frequency_, presence_;
  bool prompt_repeats_, prompt_counts_;
  std::vector<Count> counts_;      // by token
  std::vector<int32_t> distinct_;  // tokens in the window
};

ALEATOR_BIND(sampler_penalties) {
  nb::class_<Penalties, Sampler>(m, "Penalties")
      .def(nb::init<int64_t, float, float, float, bool, bool>(), nb::arg("penalty_last_n"),
           nb::arg("repetition_penalty"), nb::arg("frequency_penalty"), nb::arg("presence_penalty"),
           nb::arg("prompt_repeats"), nb::arg("prompt_counts"));
}

}  // namespace aleator
