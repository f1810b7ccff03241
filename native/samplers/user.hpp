// A sampler written in Python, in either kind of chain.  Contract: src/aleator/samplers/user.py
#pragma once

#include <nanobind/stl/shared_ptr.h>

#include <memory>
#include <type_traits>
#include <utility>

#include "bind.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

// Base: a chain's sampler; Inner: its candidates, which Python sees as Shown; When: what apply is
// told.
template <typename Base, typename Inner, typename When, typename Shown>
class Called : public Base {
 public:
  // apply(native candidates, position), accept(token, generated), rollback(), reset(),
  // set_ordinal(ordinal), clone() -> the same; without a position where draws are not keyed by it
  explicit Called(nb::object adapter) : adapter_(std::move(adapter)) {}
  ~Called() override {
    nb::gil_scoped_acquire gil;
    adapter_.reset();
  }

  void apply(Inner& candidates, const When& when) override {
    nb::gil_scoped_acquire gil;
    auto shown = std::make_shared<Shown>(candidates);
    nb::object wrapped = nb::cast(shown);
    try {
      if constexpr (std::is_same_v<When, Step>)
        adapter_.attr("apply")(wrapped, when.position);
      else
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

 protected:
  template <typename Derived>
  std::shared_ptr<Base> cloned() const {
    nb::gil_scoped_acquire gil;
    return std::make_shared<Derived>(adapter_.attr("clone")());
  }

  nb::object adapter_;
};

}  // namespace aleator
