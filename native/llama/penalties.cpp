// Contract: docs/llama-cpp.md
#include "bind.hpp"
#include "llama/sampler.hpp"
#include "samplers/window_counts.hpp"

namespace aleator::llama {

class Penalties : public LlamaCloned<Penalties> {
 public:
  Penalties(int64_t last_n, float repetition, float frequency, float presence)
      : active_(last_n != 0 && (repetition != 1 || frequency != 0 || presence != 0)),
        repetition_(repetition),
        frequency_(frequency),
        presence_(presence),
        window_(last_n) {}

  void apply(Row& row, const History&) override {
    if (!active_) return;
    row.edit(window_.distinct(), [&](int32_t id, float& logit) {
      const int32_t count = window_.count(id).all;
      if (!count) return;
      logit = logit <= 0 ? logit * repetition_ : logit / repetition_;
      logit -= static_cast<float>(count) * frequency_ + presence_;
    });
    row.sorted = false;
  }

  void accept(const History& h) override {
    if (active_) window_.accept(h);
  }
  void unaccept(const History& h) override {
    if (active_) window_.unaccept(h);
  }
  void reset() override { window_.reset(); }

 private:
  bool active_;
  float repetition_, frequency_, presence_;
  WindowCounts window_;
};

ALEATOR_BIND(llama_penalties) {
  nb::class_<Penalties, LlamaSampler>(m, "LlamaPenalties")
      .def(nb::init<int64_t, float, float, float>(), nb::arg("penalty_last_n"),
           nb::arg("repetition_penalty"), nb::arg("frequency_penalty"),
           nb::arg("presence_penalty"));
}

}  // namespace aleator::llama
