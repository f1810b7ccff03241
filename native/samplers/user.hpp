// A sampler written in Python, in either kind of chain.  Contract: src/aleator/samplers/user.py
#pragma once

#include <type_traits>

#include "bind.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

// An object of Python that native code calls, whether or not it holds the interpreter lock.
class Adapter {
 public:
  explicit Adapter(nb::object object) : object_(std::move(object)) {}
  ~Adapter() {
    nb::gil_scoped_acquire gil;
    object_.reset();
  }

  template <typename Result = void, typename... Arguments>
  Result call(const char* method, Arguments... arguments) const {
    nb::gil_scoped_acquire gil;
    return nb::cast<Result>(object_.attr(method)(arguments...));
  }
  nb::object object() const { return object_; }

 private:
  nb::object object_;
};

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

  void apply(Inner& candidates, const When& when) override {
    nb::gil_scoped_acquire gil;
    auto shown = std::make_shared<Shown>(candidates);
    nb::object wrapped = nb::cast(shown);
    try {
      if constexpr (std::is_same_v<When, Step>)
        adapter_.call("apply", wrapped, when.position);
      else
        adapter_.call("apply", wrapped);
    } catch (...) {
      shown->expire();
      throw;
    }
    shown->expire();
  }
  void accept(const History& h) override {
    adapter_.call("accept", h.tokens.back(), h.generated.back() != 0);
  }
  void unaccept(const History&) override { adapter_.call("rollback"); }
  void reset() override { adapter_.call("reset"); }
  void write_state(StateWriter& out) const override {
    nb::gil_scoped_acquire gil;
    const auto state = adapter_.call<nb::object>("write_state", out.users);
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
    adapter_.call("read_state", state, nb::cast(h.tokens), nb::cast(h.generated));
  }
  nb::object adapter() const { return adapter_.object(); }

 protected:
  template <typename Derived>
  std::shared_ptr<Base> cloned() const {
    nb::gil_scoped_acquire gil;
    return std::make_shared<Derived>(adapter_.call<nb::object>("clone"));
  }

  Adapter adapter_;
};

// The class of such samplers.
template <typename UserSampler, typename Base>
void bind_user(nb::module_& m, const char* name) {
  nb::class_<UserSampler, Base>(m, name)
      .def(nb::init<nb::object>(), "adapter"_a)
      .def_prop_ro("adapter", &UserSampler::adapter);
}

}  // namespace aleator
