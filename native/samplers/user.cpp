// A sampler written in Python, anywhere in a chain.  Contract: src/aleator/samplers/user.py
#include <nanobind/stl/shared_ptr.h>

#include "bind.hpp"
#include "samplers/binding.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

class UserSampler : public Sampler {
 public:
  // apply(native candidates), accept(token, generated), rollback(), reset(), clone() -> the same
  explicit UserSampler(nb::object adapter) : adapter_(std::move(adapter)) {}
  ~UserSampler() override {
    nb::gil_scoped_acquire gil;
    adapter_.reset();
  }

  void apply(Candidates& candidates, const Step&) override {
    nb::gil_scoped_acquire gil;
    auto shown = std::make_shared<PyCandidates>(candidates);
    nb::object wrapped = nb::cast(shown);
    try {
      adapter_.attr("apply")(wrapped);
    } catch (...) {
      shown->expire();
      throw;
    }
    shown->expire();
  }
  void accept(const History& h) override {
    nb::gil_scoped_acquire gil;
    adapter_.attr("accept")(h.tokens.back(), h.generated.back() != 0);
  }
  void unaccept(const History&) override {
    nb::gil_scoped_acquire gil;
    adapter_.attr("rollback")();
  }
  void reset() override {
    nb::gil_scoped_acquire gil;
    adapter_.attr("reset")();
  }
  std::shared_ptr<Sampler> clone() const override {
    nb::gil_scoped_acquire gil;
    return std::make_shared<UserSampler>(adapter_.attr("clone")());
  }

 private:
  nb::object adapter_;
};

ALEATOR_BIND(sampler_user) {
  nb::class_<UserSampler, Sampler>(m, "UserSampler")
      .def(nb::init<nb::object>(), nb::arg("adapter"));
}

}  // namespace aleator
