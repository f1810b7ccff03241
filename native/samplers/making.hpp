// How samplers of both kinds of chain are made from Python: by functions, which are shorter to
// compile than classes.
#pragma once

#include <tuple>
#include <utility>

#include "bind.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

template <typename Signature>
struct Maker;

template <typename Made, typename... Parameters>
struct Maker<Made(Parameters...)> {
  using Pointer = decltype(std::declval<const Made&>().clone());
  static Pointer make(Parameters... parameters) {
    return std::make_shared<Made>(std::move(parameters)...);
  }
};

// Signature: the class and the types that it is made from; the names are those of these.
template <typename Signature, typename... Names>
void bind_sampler(nb::module_& m, const char* name, const Names&... names) {
  m.def(name, &Maker<Signature>::make, names...);
}

// A sampler that remembers nothing is a function of the row, of the step where it asks for one, and
// of its parameters.
template <auto function, typename Base, typename Signature = decltype(function)>
class Stateless;

template <auto function, typename Base, typename Row, typename... Parameters>
class Stateless<function, Base, void (*)(Row&, Parameters...)>
    : public Cloned<Stateless<function, Base>, Base> {
 public:
  using Made = Stateless<function, Base>(std::decay_t<Parameters>...);
  explicit Stateless(std::decay_t<Parameters>... parameters)
      : parameters_(std::move(parameters)...) {}
  void apply(Row& row, [[maybe_unused]] const typename Base::When& when) override {
    std::apply(
        [&](const auto&... parameters) {
          if constexpr (requires { function(row, when, parameters...); })
            function(row, when, parameters...);
          else
            function(row, parameters...);
        },
        parameters_);
  }

 private:
  std::tuple<std::decay_t<Parameters>...> parameters_;
};

template <auto function, typename Base, typename Row, typename... Parameters>
class Stateless<function, Base, void (*)(Row&, const Step&, Parameters...)>
    : public Stateless<function, Base, void (*)(Row&, Parameters...)> {
 public:
  using Stateless<function, Base, void (*)(Row&, Parameters...)>::Stateless;
};

// With room that it fills anew each time.
template <auto function, typename Base, typename Row, typename Room, typename... Parameters>
  requires(!std::is_const_v<Room>)
class Stateless<function, Base, void (*)(Row&, Room&, Parameters...)>
    : public Cloned<Stateless<function, Base>, Base> {
 public:
  using Made = Stateless<function, Base>(std::decay_t<Parameters>...);
  explicit Stateless(std::decay_t<Parameters>... parameters)
      : parameters_(std::move(parameters)...) {}
  void apply(Row& row, const typename Base::When&) override {
    std::apply([&](const auto&... parameters) { function(row, room_, parameters...); },
               parameters_);
  }

 private:
  std::tuple<std::decay_t<Parameters>...> parameters_;
  Room room_;
};

// The names are those of the function's parameters after the row and the step or the room.
template <auto function, typename Base = Sampler, typename... Names>
void bind_stateless(nb::module_& m, const char* name, const Names&... names) {
  bind_sampler<typename Stateless<function, Base>::Made>(m, name, names...);
}

}  // namespace aleator
