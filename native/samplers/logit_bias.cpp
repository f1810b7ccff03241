// Contract: src/aleator/samplers/logit_bias.py
#include "bind.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class LogitBias : public Cloned<LogitBias> {
 public:
  explicit LogitBias(std::vector<std::pair<int32_t, float>> biases) : biases_(std::move(biases)) {}

  void apply(Candidates& c, const Step&) override {
    if (biases_.empty()) return;
    for (const auto& [token, bias] : biases_) require_token("logit_bias", token, c.n_vocab());
    for (const auto& [token, bias] : biases_)
      if (float* z = c.edit(token)) *z += bias;
    c.settle();
  }

 private:
  std::vector<std::pair<int32_t, float>> biases_;
};

ALEATOR_BIND(sampler_logit_bias) {
  nb::class_<LogitBias, Sampler>(m, "LogitBias")
      .def(nb::init<std::vector<std::pair<int32_t, float>>>(), "biases"_a);
}

}  // namespace aleator
