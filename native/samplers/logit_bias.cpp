// Contract: src/aleator/samplers/logit_bias.py
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "bind.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class LogitBias : public Cloned<LogitBias> {
 public:
  explicit LogitBias(std::vector<std::pair<int32_t, float>> biases) : biases_(std::move(biases)) {}

  void apply(Candidates& c, const Step&) override {
    if (biases_.empty()) return;
    for (const auto& [token, bias] : biases_)
      if (token >= c.n_vocab())
        throw ParameterError("logit_bias", "logit_bias names token " + std::to_string(token) +
                                               ", but the logits have " +
                                               std::to_string(c.n_vocab()) + " values");
    for (const auto& [token, bias] : biases_)
      if (float* z = c.edit(token)) *z += bias;
    c.settle();
  }

 private:
  std::vector<std::pair<int32_t, float>> biases_;
};

ALEATOR_BIND(sampler_logit_bias) {
  nb::class_<LogitBias, Sampler>(m, "LogitBias")
      .def(nb::init<std::vector<std::pair<int32_t, float>>>(), nb::arg("biases"));
}

}  // namespace aleator
