// Contract: docs/llama-cpp.md
#include <algorithm>
#include <cmath>

#include "llama/sampler.hpp"
#include "samplers/making.hpp"

namespace aleator::llama {

static void dynamic_temperature(Row& row, float temperature, float range, float exponent) {
  if (row.size() <= 1) return;
  const float low = std::max(0.0f, temperature - range), high = temperature + range;
  const float most = -std::log(1.0f / float(row.size()));
  row.softmax(true);
  Candidate* c = row.list();
  float entropy = 0;
  for (int64_t i = 0; i < row.size(); ++i)
    if (c[i].p > 0) entropy -= c[i].p * std::log(c[i].p);
  row.divide(low + (high - low) * std::pow(entropy / most, exponent));
  const double sum = row.exponentials<double>(
      [](float z, float shift) { return std::exp(double(z) - double(shift)); });
  for (int64_t i = 0; i < row.size(); ++i) c[i].p = float(c[i].p / sum);
  row.p_current = true;
}

static void temperature(Row& row, float temperature, float range, float exponent) {
  if (range > 0)
    dynamic_temperature(row, temperature, range, exponent);
  else if (temperature != 1)
    row.divide(temperature);
}

ALEATOR_BIND(llama_temperature) {
  bind_stateless<temperature, LlamaSampler>(m, "LlamaTemperature", "temperature"_a,
                                            "dynatemp_range"_a, "dynatemp_exponent"_a);
}

}  // namespace aleator::llama
