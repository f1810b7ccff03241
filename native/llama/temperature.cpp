// Contract: docs/llama-cpp.md
#include <algorithm>
#include <cmath>

#include "bind.hpp"
#include "llama/sampler.hpp"

namespace aleator::llama {

class Temperature : public LlamaCloned<Temperature> {
 public:
  Temperature(float temperature, float range, float exponent)
      : temperature_(temperature), range_(range), exponent_(exponent) {}

  void apply(Row& row, const History&) override {
    if (range_ > 0)
      apply_dynamic(row);
    else if (temperature_ != 1)
      row.divide(temperature_);
  }

 private:
  void apply_dynamic(Row& row) {
    if (row.size() <= 1) return;
    const float low = std::max(0.0f, temperature_ - range_), high = temperature_ + range_;
    const float most = -std::log(1.0f / static_cast<float>(row.size()));
    row.softmax(true);
    Candidate* c = row.list();
    float entropy = 0;
    for (int64_t i = 0; i < row.size(); ++i)
      if (c[i].p > 0) entropy -= c[i].p * std::log(c[i].p);
    row.divide(low + (high - low) * std::pow(entropy / most, exponent_));
    const double sum = row.exponentials<double>([](float z, float shift) {
      return std::exp(static_cast<double>(z) - static_cast<double>(shift));
    });
    for (int64_t i = 0; i < row.size(); ++i) c[i].p = static_cast<float>(c[i].p / sum);
    row.p_current = true;
  }

  float temperature_, range_, exponent_;
};

ALEATOR_BIND(llama_temperature) {
  nb::class_<Temperature, LlamaSampler>(m, "LlamaTemperature")
      .def(nb::init<float, float, float>(), "temperature"_a, "dynatemp_range"_a,
           "dynatemp_exponent"_a);
}

}  // namespace aleator::llama
