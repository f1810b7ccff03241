// Contract: src/aleator/samplers/dist.py
#include "bind.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class Dist : public Cloned<Dist> {
 public:
  Dist(uint64_t seed, uint32_t ordinal) : seed_(seed), ordinal_(ordinal) {}

  void apply(Candidates &c, const Step &step) override {
    const uint64_t u = philox_u64(seed_, 0, step.position,
                                  stream_word(Purpose::dist, ordinal_, step.completion));
    const uint64_t total = c.mass();
    const auto target = static_cast<uint64_t>(static_cast<unsigned __int128>(u) * total >> 64);
    c.selected = c.at_mass(target);
  }

 private:
  uint64_t seed_;
  uint32_t ordinal_;
};

ALEATOR_BIND(sampler_dist) {
  nb::class_<Dist, Sampler>(m, "Dist")
      .def(nb::init<uint64_t, uint32_t>(), nb::arg("seed"), nb::arg("ordinal"));
}

}  // namespace aleator
