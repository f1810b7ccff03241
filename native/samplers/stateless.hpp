// A sampler that remembers nothing is a function of the row, of the step where it asks for one, and
// of its parameters.
#pragma once

#include <tuple>

#include "bind.hpp"
#include "samplers/sampler.hpp"

namespace aleator {

template <auto function, typename Base, typename Signature = decltype(function)>
class Stateless;

template <auto function, typename Base, typename Row, typename... Parameters>
class Stateless<function, Base, void (*)(Row&, Parameters...)>
    : public Cloned<Stateless<function, Base>, Base> {
 public:
  using Init = nb::init<std::decay_t<Parameters>...>;
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

// The class of such samplers; the names are those of the function's parameters after the row.
template <auto function, typename Base = Sampler, typename... Names>
void bind_stateless(nb::module_& m, const char* name, const Names&... names) {
  using Bound = Stateless<function, Base>;
  nb::class_<Bound, Base>(m, name).def(typename Bound::Init(), names...);
}

}  // namespace aleator
