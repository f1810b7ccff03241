// Contract: src/aleator/samplers/top_k.py
#include "bind.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class TopK : public Cloned<TopK> {
 public:
  explicit TopK(int64_t top_k) : top_k_(top_k) {}
  void apply(Candidates& c, const Step&) override {
    if (top_k_ > 0) c.keep_first(top_k_);
  }

 private:
  int64_t top_k_;
};

// Another k where the first is off or not less than the vocabulary.
class LimitedTopK : public Cloned<LimitedTopK> {
 public:
  LimitedTopK(int64_t top_k, int64_t limit) : top_k_(top_k), limit_(limit) {}
  void apply(Candidates& c, const Step&) override {
    c.keep_first(top_k_ > 0 && top_k_ < c.n_vocab() ? top_k_ : limit_);
  }

 private:
  int64_t top_k_, limit_;
};

ALEATOR_BIND(sampler_top_k) {
  nb::class_<TopK, Sampler>(m, "TopK").def(nb::init<int64_t>(), "top_k"_a);
  nb::class_<LimitedTopK, Sampler>(m, "LimitedTopK")
      .def(nb::init<int64_t, int64_t>(), "top_k"_a, "limit"_a);
}

}  // namespace aleator
