// How samplers of both kinds of chain are made from Python: by functions, which are shorter to
// compile than classes.
#pragma once

#include <tuple>
#include <type_traits>
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

struct Nothing {};

// A sampler that remembers nothing is a function of the row, of its parameters, and of what stands
// between these: the step, room that it fills anew each time, or nothing.
template <auto function, typename Base, typename Row, typename Between, typename... Parameters>
class Stateless : public Cloned<Stateless<function, Base, Row, Between, Parameters...>, Base> {
 public:
  using Made = Stateless(Parameters...);
  explicit Stateless(Parameters... parameters) : parameters_(std::move(parameters)...) {}
  void apply(Row& row, [[maybe_unused]] const typename Base::When& when) override {
    std::apply(
        [&](const auto&... parameters) {
          if constexpr (std::is_same_v<Between, Step>)
            function(row, when, parameters...);
          else if constexpr (std::is_same_v<Between, Nothing>)
            function(row, parameters...);
          else
            function(row, room_, parameters...);
        },
        parameters_);
  }

 private:
  std::tuple<Parameters...> parameters_;
  Between room_;
};

// The class that belongs to a function.
template <auto function, typename Base, typename Row, typename... P>
Stateless<function, Base, Row, Nothing, std::decay_t<P>...> stateless(void (*)(Row&, P...));
template <auto function, typename Base, typename Row, typename... P>
Stateless<function, Base, Row, Step, std::decay_t<P>...> stateless(void (*)(Row&, const Step&,
                                                                            P...));
template <auto function, typename Base, typename Row, typename Room, typename... P>
  requires(!std::is_const_v<Room>)
Stateless<function, Base, Row, Room, std::decay_t<P>...> stateless(void (*)(Row&, Room&, P...));

// The names are those of the function's parameters after the row and the step or the room.
template <auto function, typename Base = Sampler, typename... Names>
void bind_stateless(nb::module_& m, const char* name, const Names&... names) {
  using Class = decltype(stateless<function, Base>(function));
  bind_sampler<typename Class::Made>(m, name, names...);
}

}  // namespace aleator
