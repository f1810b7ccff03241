// Contract: src/aleator/samplers/temperature.py
#include "bind.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class Temperature : public Cloned<Temperature> {
 public:
  explicit Temperature(double temperature) : temperature_(temperature) {}
  void apply(Candidates &c, const Step &) override { c.multiply_temperature(temperature_); }

 private:
  double temperature_;
};

ALEATOR_BIND(sampler_temperature) {
  nb::class_<Temperature, Sampler>(m, "Temperature")
      .def(nb::init<double>(), nb::arg("temperature"));
}

}  // namespace aleator
