// Contract: docs/llama-cpp.md
#include <cmath>

#include "bind.hpp"
#include "llama/draws.hpp"
#include "llama/sampler.hpp"

namespace aleator::llama {

class MirostatV2 : public LlamaCloned<MirostatV2> {
 public:
  MirostatV2(float tau, float eta, uint32_t seed)
      : tau_(tau), eta_(eta), mu_(2 * tau), draws_(seed) {}

  void apply(Row& row, const History&) override {
    row.softmax(true);
    const Candidate* c = row.list();
    int64_t kept = 0;
    while (kept < row.size() && !(-std::log2(c[kept].p) > mu_)) ++kept;
    row.truncate(std::max<int64_t>(kept, 1));
    row.softmax(true);
    row.selected = multinomial(row, draws_);
    const float surprise = -std::log2(c[row.selected].p);
    mu_ = mu_ - eta_ * (surprise - tau_);
  }

  void reset() override {
    mu_ = 2 * tau_;
    draws_.reset();
  }
  float mu() const { return mu_; }
  bool has_state() const override { return true; }
  State state() const override { return {.words = draws_.words(), .a = mu_}; }
  void restore(const State& s) override {
    draws_.rewind(s.words);
    mu_ = s.a;
  }

 private:
  float tau_, eta_, mu_;
  Draws draws_;
};

ALEATOR_BIND(llama_mirostat_v2) {
  nb::class_<MirostatV2, LlamaSampler>(m, "LlamaMirostatV2")
      .def(nb::init<float, float, uint32_t>(), nb::arg("mirostat_tau"), nb::arg("mirostat_eta"),
           nb::arg("seed"))
      .def_prop_ro("mu", &MirostatV2::mu);
}

}  // namespace aleator::llama
