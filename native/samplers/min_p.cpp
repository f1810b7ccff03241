// Contract: src/aleator/samplers/min_p.py
#include <cmath>

#include "bind.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class MinP : public Cloned<MinP> {
 public:
  MinP(float min_p, int64_t min_keep)
      : min_p_(min_p), log_min_p_(std::log(static_cast<double>(min_p))), min_keep_(min_keep) {}
  void apply(Candidates &c, const Step &) override {
    if (min_p_ > 0) c.keep_distance(static_cast<float>(c.temperature() * log_min_p_), min_keep_);
  }

 private:
  float min_p_;
  double log_min_p_;
  int64_t min_keep_;
};

ALEATOR_BIND(sampler_min_p) {
  nb::class_<MinP, Sampler>(m, "MinP")
      .def(nb::init<float, int64_t>(), nb::arg("min_p"), nb::arg("min_keep"));
}

}  // namespace aleator
