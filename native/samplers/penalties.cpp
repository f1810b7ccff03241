// Contract: src/aleator/samplers/penalties.py
#include "bind.hpp"
#include "samplers/sampler.hpp"
#include "samplers/window_counts.hpp"

namespace aleator {

class Penalties : public Cloned<Penalties> {
 public:
  // Whether prompt tokens count for the repetition penalty, and for the other two; whether a token
  // that occurs often is penalised for its repetition as often.
  Penalties(int64_t last_n, float repetition, float frequency, float presence, bool prompt_repeats,
            bool prompt_counts, bool per_occurrence)
      : active_(last_n != 0 && (repetition != 1 || frequency != 0 || presence != 0)),
        repetition_(repetition),
        frequency_(frequency),
        presence_(presence),
        prompt_repeats_(prompt_repeats),
        prompt_counts_(prompt_counts),
        per_occurrence_(per_occurrence),
        window_(last_n) {}

  void apply(Candidates& c, const Step&) override {
    if (!active_ || window_.distinct().empty()) return;
    for (const int32_t token : window_.distinct()) {
      float* z = c.edit(token);
      if (!z) continue;
      const auto count = window_.count(token);
      if (const int32_t times = prompt_repeats_ ? count.all : count.generated)
        for (int32_t i = per_occurrence_ ? times : 1; i; --i)
          *z = *z > 0 ? *z / repetition_ : *z * repetition_;
      if (const int32_t times = prompt_counts_ ? count.all : count.generated) {
        const float by_count = static_cast<float>(times) * frequency_;
        *z = *z - (by_count + presence_);
      }
    }
    c.settle();
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
  bool prompt_repeats_, prompt_counts_, per_occurrence_;
  WindowCounts window_;
};

ALEATOR_BIND(sampler_penalties) {
  nb::class_<Penalties, Sampler>(m, "Penalties")
      .def(nb::init<int64_t, float, float, float, bool, bool, bool>(), nb::arg("penalty_last_n"),
           nb::arg("repetition_penalty"), nb::arg("frequency_penalty"), nb::arg("presence_penalty"),
           nb::arg("prompt_repeats"), nb::arg("prompt_counts"), nb::arg("per_occurrence"));
}

}  // namespace aleator
