// A sampler written in Python, in either kind of chain.  Contract: src/aleator/samplers/user.py
#pragma once

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

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
  // set_ordinal(ordinal), clone() -> the same, write_state(users) -> bytes or None,
  // read_state(bytes or None, tokens, generated); without a position where draws are not keyed by
  // it
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
  void write_state(StateWriter& out) const override {
    nb::gil_scoped_acquire gil;
    const nb::object state = adapter_.attr("write_state")(out.users);
    out.put<uint8_t>(!state.is_none());
    if (state.is_none()) return;
    const auto bytes = nb::cast<nb::bytes>(state);
    out.put_bytes({bytes.c_str(), bytes.size()});
  }
  void read_state(StateReader& in, const History& h) override {
    nb::gil_scoped_acquire gil;
    nb::object state = nb::none();
    if (in.get<uint8_t>()) {
      const std::string_view rest = in.rest();
      state = nb::bytes(rest.data(), rest.size());
    }
    adapter_.attr("read_state")(state, nb::cast(h.tokens), nb::cast(h.generated));
  }
  nb::object adapter() const { return adapter_; }

 protected:
  template <typename Derived>
  std::shared_ptr<Base> cloned() const {
    nb::gil_scoped_acquire gil;
    return std::make_shared<Derived>(adapter_.attr("clone")());
  }

  nb::object adapter_;
};

}  // namespace aleator
