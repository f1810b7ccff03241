// Contract: src/aleator/samplers/dist.py
#include "bind.hpp"
#include "rng/fixed.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class Dist : public Cloned<Dist> {
 public:
  Dist(uint64_t seed, uint32_t ordinal, bool gumbel) : stream_{seed, ordinal}, gumbel_(gumbel) {}

  void apply(Candidates& c, const Step& step) override {
    if (gumbel_) {
      race(c, step);
    } else {
      c.draw(uniform(Purpose::dist, stream_, step.position, step.completion));
    }
  }

  void set_ordinal(uint32_t ordinal) override { stream_.ordinal = ordinal; }

 private:
  // The smallest E(id) / w(id), E = -log2 of the token's own uniform; fractions compared exactly.
  void race(Candidates& c, const Step& step) const {
    const auto& w = c.weights();
    uint64_t best_e = 0, best_w = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      if (!w[i]) continue;
      const auto id = static_cast<uint32_t>(c.ids()[i]);
      const uint64_t u = uniform(Purpose::gumbel, stream_, step.position, step.completion, id);
      const uint64_t e = (uint64_t{64} << 32) - static_cast<uint64_t>(log2_q32(u ? u : 1));
      if (!best_w || static_cast<u128>(e) * best_w < static_cast<u128>(best_e) * w[i]) {
        best_e = e;
        best_w = w[i];
        c.selected = c.ids()[i];
      }
    }
  }

  Stream stream_;
  bool gumbel_;
};

ALEATOR_BIND(sampler_dist) {
  nb::class_<Dist, Sampler>(m, "Dist").def(nb::init<uint64_t, uint32_t, bool>(), nb::arg("seed"),
                                           nb::arg("ordinal"), nb::arg("gumbel"));
}

}  // namespace aleator
