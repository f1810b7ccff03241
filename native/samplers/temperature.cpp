// Contract: src/aleator/samplers/temperature.py
#include <algorithm>

#include "bind.hpp"
#include "rng/fixed.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class Temperature : public Cloned<Temperature> {
 public:
  Temperature(double temperature, double range, double exponent)
      : temperature_(temperature), range_(range), exponent_(exponent) {}

  void apply(Candidates& c, const Step&) override {
    c.multiply_temperature(range_ > 0 ? dynamic(c) : temperature_);
  }

 private:
  double dynamic(Candidates& c) {
    const double low = std::max(0.0, temperature_ - range_), high = temperature_ + range_;
    double level = 0;  // of one candidate the entropy is 0 of 0
    if (const int64_t n = c.count(); n > 1) {
      level = std::min(1.0, c.entropy().bits / log2_double(static_cast<double>(n)));
      if (level > 0 && exponent_ != 1) level = exp2_double(exponent_ * log2_double(level));
      if (exponent_ == 0) level = 1;
    }
    return low + (high - low) * level;
  }

  double temperature_, range_, exponent_;
};

ALEATOR_BIND(sampler_temperature) {
  nb::class_<Temperature, Sampler>(m, "Temperature")
      .def(nb::init<double, double, double>(), "temperature"_a, "dynatemp_range"_a,
           "dynatemp_exponent"_a);
}

}  // namespace aleator
