// Contract: src/aleator/samplers/smoothing.py
#include "bind.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class Smoothing : public Cloned<Smoothing> {
 public:
  Smoothing(float square, float cube) : square_(square), cube_(cube) {}

  void apply(Candidates& c, const Step&) override {
    if (square_ == 0 && cube_ == 0) return;
    auto& logits = c.edit_all();
    const float top = c.top();
    for (float& z : logits) {
      const float d = z - top, square = d * d;
      const float cube = square * d;
      const float bent = top - square_ * square;
      z = bent + cube_ * cube;
    }
    c.settle();
  }

 private:
  float square_, cube_;
};

ALEATOR_BIND(sampler_smoothing) {
  nb::class_<Smoothing, Sampler>(m, "Smoothing")
      .def(nb::init<float, float>(), "square"_a, "cube"_a);
}

}  // namespace aleator
