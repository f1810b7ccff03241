// Functions and classes for JavaScript.
#pragma once

#include "ndarrays.h"

namespace nanobind {

// --- arguments ---

struct arg_v;
struct arg {
  const char* name;
  bool may_be_none = false;
  template <class T>
  arg_v operator=(T&& value) const;
  arg& noconvert(bool = true) { return *this; }
  arg& none(bool = true) {
    may_be_none = true;
    return *this;
  }
};
struct arg_v : arg {
  object value;
};
template <class T>
arg_v arg::operator=(T&& value) const {
  return {*this, detail::to_js(std::forward<T>(value))};
}
namespace literals {
inline arg operator""_a(const char* name, size_t) { return {name}; }
}  // namespace literals

template <size_t kept, size_t by>
struct keep_alive {};
template <class... T>
struct call_guard {};
template <class... T>
struct init {};
template <class F>
struct new_ {
  F make;
  explicit new_(F f) : make(f) {}
};
template <class T>
struct for_getter {
  explicit for_getter(T) {}
};
template <class T>
struct for_setter {
  explicit for_setter(T) {}
};

// --- functions ---

struct Function {
  std::string name;
  std::function<object(const int* arguments, int count)> call;
  struct Argument {
    const char* name;
    bool has_value, may_be_none;
    object value;
  };
  std::vector<Argument> arguments;  // after `this`
  int before = 0;                   // 1: `this` is before them
  bool keeps = false;               // what is made keeps its first argument
};
inline std::vector<std::unique_ptr<Function>>& functions() {
  static std::vector<std::unique_ptr<Function>> all;
  return all;
}

namespace detail {

template <class Extra>
void note(Function&, const Extra&) {}
inline void note(Function& f, const arg& a) {
  f.arguments.push_back({a.name, false, a.may_be_none, {}});
}
inline void note(Function& f, const arg_v& a) {
  f.arguments.push_back({a.name, true, true, a.value});
}
template <size_t kept, size_t by>
void note(Function& f, const keep_alive<kept, by>&) {
  f.keeps = true;
}

// The argument as a function takes it.
template <class A, class Caster>
decltype(auto) given(Caster& caster) {
  using Held = decltype(caster.value);
  constexpr bool pointer = std::is_pointer_v<Held> && std::is_class_v<std::remove_pointer_t<Held>>;
  if constexpr (pointer && std::is_pointer_v<A>)
    return (A)(caster.value);
  else if constexpr (pointer)
    return (static_cast<std::remove_pointer_t<Held>&>(*caster.value));
  else if constexpr (std::is_lvalue_reference_v<A>)
    return (caster.value);
  else
    return std::move(caster.value);
}

template <class Result, class... A, class F>
std::function<object(const int*, int)> caller(Function& function, F f) {
  return [&function, f](const int* numbers, int count) mutable -> object {
    if (count < int(sizeof...(A)))
      throw type_error(function.name + " takes " +
                       std::to_string(int(sizeof...(A)) - function.before) + " arguments");
    return [&]<size_t... i>(std::index_sequence<i...>) -> object {
      std::tuple<make_caster<A>...> casters;
      const auto load = [&](auto& caster, size_t at) {
        if (caster.from_python(handle(numbers[at]), 0, nullptr)) return;
        std::string message = function.name + ": ";
        const size_t named = at - size_t(function.before);
        if (at < size_t(function.before))
          message += "this";
        else if (named < function.arguments.size())
          message += function.arguments[named].name;
        else
          message += "argument " + std::to_string(named + 1);
        throw type_error(message + " is no " + caster.Name + " of the type, size or range wanted");
      };
      (load(std::get<i>(casters), i), ...);
      if constexpr (std::is_void_v<Result>) {
        f(given<A>(std::get<i>(casters))...);
        return {};
      } else if constexpr (std::is_lvalue_reference_v<Result> &&
                           std::is_class_v<std::remove_reference_t<Result>> &&
                           !std::is_const_v<std::remove_reference_t<Result>>) {
        // A part of `this`, which lives as long.
        auto& part = f(given<A>(std::get<i>(casters))...);
        const auto* self = static_cast<const Instance*>(js_instance(numbers[0]));
        using Part = std::remove_reference_t<Result>;
        return instance_of(std::shared_ptr<Part>(self->owner, &part));
      } else {
        return to_js(f(given<A>(std::get<i>(casters))...));
      }
    }(std::index_sequence_for<A...>());
  };
}

template <class F>
struct signature : signature<decltype(&F::operator())> {};
template <class R, class... A>
struct signature<R (*)(A...)> {
  static auto make(Function& function, R (*f)(A...)) { return caller<R, A...>(function, f); }
};
template <class C, class R, class... A>
struct signature<R (C::*)(A...) const> {  // a lambda's, or a member's
  template <class F>
  static auto make(Function& function, F f) {
    return caller<R, A...>(function, std::move(f));
  }
};
template <class C, class R, class... A>
struct signature<R (C::*)(A...)> : signature<R (C::*)(A...) const> {};
template <class C, class R, class... A>
struct signature<R (C::*)(A...) const noexcept> : signature<R (C::*)(A...) const> {};
template <class C, class R, class... A>
struct signature<R (C::*)(A...) noexcept> : signature<R (C::*)(A...) const> {};

// Role, as native.js knows them.
enum class Role : int { function, method, getter, setter, constructor };

template <class Make, class... Extra>
void define(int type, const char* name, Role role, Make&& make, const Extra&... extra) {
  functions().push_back(std::make_unique<Function>());
  Function& function = *functions().back();
  function.name = name;
  function.before = role == Role::method || role == Role::getter || role == Role::setter;
  (note(function, extra), ...);
  function.call = make(function);
  js_define(int(functions().size()) - 1, type, name, int(strlen(name)), int(role));
}

template <class T, class C, class R, class... A>
auto as_function(R (C::*method)(A...)) {
  return [method](T& object, A... a) -> R { return (object.*method)(std::forward<A>(a)...); };
}
template <class T, class C, class R, class... A>
auto as_function(R (C::*method)(A...) const) {
  return [method](const T& object, A... a) -> R { return (object.*method)(std::forward<A>(a)...); };
}

// A method of T as a function of its object.
template <class T, class F>
auto plain(F f) {
  if constexpr (std::is_member_function_pointer_v<F>)
    return as_function<T>(f);
  else
    return f;
}
template <class F>
auto maker_of(F f) {
  return [f](Function& function) { return signature<std::decay_t<F>>::make(function, f); };
}

}  // namespace detail

class module_ {
 public:
  struct Constant {
    template <class T>
    void operator=(T&&) {}
  };
  Constant attr(const char*) { return {}; }  // constants are not JavaScript's
  template <class F, class... Extra>
  module_& def(const char* name, F f, const Extra&... extra) {
    detail::define(-1, name, detail::Role::function, detail::maker_of(f), extra...);
    return *this;
  }
};

template <class T, class Base = void>
class class_ {
 public:
  template <class... Extra>
  class_(module_&, const char* name, const Extra&...) {
    Class made{name, &typeid(T)};
    if constexpr (!std::is_void_v<Base>) {
      made.base = class_number<Base>::value;
      made.to_base = [](void* p) -> void* { return static_cast<Base*>(static_cast<T*>(p)); };
    }
    class_number<T>::value = int(classes().size());
    classes().push_back(made);
    js_define_class(number(), name, int(strlen(name)), made.base);
  }

  template <class... A, class... Extra>
  class_& def(init<A...>, const Extra&... extra) {
    return constructor([](A... a) { return std::make_shared<T>(std::forward<A>(a)...); }, extra...);
  }
  template <class F, class... Extra>
  class_& def(new_<F> factory, const Extra&... extra) {
    return constructor(factory.make, extra...);
  }
  template <class F, class... Extra>
  class_& def(const char* name, F f, const Extra&... extra) {
    detail::define(number(), name, detail::Role::method, detail::maker_of(detail::plain<T>(f)),
                   extra...);
    return *this;
  }
  template <class F, class... Extra>
  class_& def_prop_ro(const char* name, F f, const Extra&... extra) {
    detail::define(number(), name, detail::Role::getter, detail::maker_of(detail::plain<T>(f)),
                   extra...);
    return *this;
  }
  template <class Get, class Set, class... Extra>
  class_& def_prop_rw(const char* name, Get get, Set set, const Extra&...) {
    def_prop_ro(name, get);
    detail::define(number(), name, detail::Role::setter, detail::maker_of(detail::plain<T>(set)));
    return *this;
  }

 private:
  static int number() { return class_number<T>::value; }
  template <class F, class... Extra>
  class_& constructor(F f, const Extra&... extra) {
    detail::define(number(), classes()[number()].name, detail::Role::constructor,
                   detail::maker_of(f), extra...);
    return *this;
  }
};

}  // namespace nanobind
