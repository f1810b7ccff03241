// Contract: src/aleator/samplers/xtc.py
#include "rng/fixed.hpp"
#include "samplers/making.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class XTC : public Cloned<XTC> {
 public:
  XTC(float probability, float threshold, int64_t min_keep, uint64_t seed, uint32_t ordinal)
      : probability_(probability),
        threshold_(threshold),
        min_keep_(min_keep),
        stream_{seed, ordinal} {
    // The coin falls when u < probability * 2^64.
    const Fraction32 p(probability);
    const u128 scaled = static_cast<u128>(p.numerator) << 64;
    bound_ = probability >= 1 ? u128{1} << 64 : p.shift >= 127 ? 0 : scaled >> p.shift;
  }

  void apply(Candidates& c, const Step& step) override {
    if (probability_ <= 0 || threshold_ > contract::xtc_largest) return;
    if (uniform(Purpose::xtc, stream_, step.position, step.completion) >= bound_) return;
    const auto& run = c.run(Fraction32(threshold_).ceil_of(c.mass()));
    const auto removed = int64_t(run.ids.size()) - 1;
    if (removed < 1 || (min_keep_ > 1 && c.count() - removed < min_keep_)) return;
    gone_ = run.ids;
    std::erase(gone_, run.last);
    c.remove(gone_);
  }

  void set_ordinal(uint32_t ordinal) override { stream_.ordinal = ordinal; }

 private:
  float probability_, threshold_;
  int64_t min_keep_;
  Stream stream_;
  u128 bound_;
  std::vector<int32_t> gone_;
};

ALEATOR_BIND(sampler_xtc) {
  bind_sampler<XTC(float, float, int64_t, uint64_t, uint32_t)>(
      m, "XTC", "xtc_probability"_a, "xtc_threshold"_a, "min_keep"_a, "seed"_a, "ordinal"_a);
}

}  // namespace aleator
