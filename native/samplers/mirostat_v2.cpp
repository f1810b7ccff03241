// Contract: src/aleator/samplers/mirostat_v2.py
#include <cmath>

#include "bind.hpp"
#include "samplers/adapting.hpp"

namespace aleator {

class MirostatV2 : public MirostatBase<MirostatV2> {
 public:
  using MirostatBase::MirostatBase;

  void apply(Candidates& c, const Step& step) override {
    // A token stays while log2(Z) - log2(w) <= mu, in Q32: while log2(w) >= level.
    const double limit =
        std::floor(std::clamp(mu(), -contract::mu_limit, contract::mu_limit) * q32);
    const int64_t level = log2_q32(c.mass()) - int64_t(limit);
    if (level > 0) {
      uint64_t low = 0, high = uint64_t{1} << 40;  // the smallest weight that reaches the level
      while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        (log2_q32(middle) < level ? low : high) = middle;
      }
      if (log2_q32(high) < level || !c.keep_run(high)) c.keep_only(c.argmax());
    }
    select(c, Purpose::mirostat_v2, step);
  }
};

ALEATOR_BIND(sampler_mirostat_v2) {
  nb::class_<MirostatV2, Sampler>(m, "MirostatV2")
      .def(nb::init<double, double, uint64_t, uint32_t>(), "mirostat_tau"_a, "mirostat_eta"_a,
           "seed"_a, "ordinal"_a)
      .def_prop_ro("mu", &MirostatV2::mu)
      .def_prop_ro("state_history", &MirostatV2::state_history);
}

}  // namespace aleator
