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

ALEATOR_BIND(sampler_top_k) {
  nb::class_<TopK, Sampler>(m, "TopK").def(nb::init<int64_t>(), nb::arg("top_k"));
}

}  // namespace aleator
