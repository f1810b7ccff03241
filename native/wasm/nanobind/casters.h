// Between JavaScript's values and C++'s.
#pragma once

#include <algorithm>
#include <array>
#include <typeinfo>

#include "values.h"

namespace nanobind {

enum class rv_policy { automatic, copy, move, reference, reference_internal };

// An object of a bound class, as JavaScript holds it.
struct Instance {
  int type;
  std::shared_ptr<void> owner;
  void* object;
  std::vector<std::shared_ptr<void>> kept;  // what it refers to
};

struct Class {
  const char* name;
  const std::type_info* type;
  int base = -1;
  void* (*to_base)(void*) = nullptr;
};
inline std::vector<Class>& classes() {
  static std::vector<Class> all;
  return all;
}
template <class T>
struct class_number {
  static inline int value = -1;
};

// The object as one of that class; null: it is of another.
inline void* as_class(const Instance& instance, int wanted) {
  void* object = instance.object;
  for (int type = instance.type; type >= 0; type = classes()[type].base) {
    if (type == wanted) return object;
    if (classes()[type].to_base) object = classes()[type].to_base(object);
  }
  return nullptr;
}

namespace detail {

struct cleanup_list {};
template <class T>
using bare = std::remove_cv_t<std::remove_pointer_t<std::remove_cvref_t<T>>>;
template <class T>
struct type_caster;
template <class T>
using make_caster = type_caster<bare<T>>;

// What a caster holds, as a T: of an object of a class it holds the address.
template <class T, class Caster>
T taken(Caster& caster) {
  if constexpr (std::is_convertible_v<decltype(caster.value), T>)
    return std::move(caster.value);
  else
    return *caster.value;
}

#define NB_TYPE_CASTER(type, name)   \
  static constexpr auto Name = name; \
  type value;

// --- objects of bound classes ---

template <class T>
struct type_caster {
  static constexpr auto Name = "object";
  T* value = nullptr;
  bool from_python(handle h, uint32_t, cleanup_list*) noexcept {
    const auto* instance = static_cast<const Instance*>(js_instance(h.number()));
    value = instance ? static_cast<T*>(as_class(*instance, class_number<T>::value)) : nullptr;
    return value;
  }
};
template <class T>
struct type_caster<std::shared_ptr<T>> {
  static constexpr auto Name = "object";
  std::shared_ptr<T> value;
  bool from_python(handle h, uint32_t, cleanup_list*) noexcept {
    const auto* instance = static_cast<const Instance*>(js_instance(h.number()));
    using Bare = std::remove_const_t<T>;
    void* p = instance ? as_class(*instance, class_number<Bare>::value) : nullptr;
    if (p) value = std::shared_ptr<T>(instance->owner, static_cast<Bare*>(p));
    return p;
  }
};

// --- numbers and texts ---

template <class T>
  requires std::is_arithmetic_v<T>
struct type_caster<T> {
  NB_TYPE_CASTER(T, "number")
  bool from_python(handle h, uint32_t, cleanup_list*) noexcept {
    const Kind kind = h.kind();
    if constexpr (std::is_same_v<T, bool>) {
      value = kind == Kind::boolean && js_number(h.number()) != 0;
      return kind == Kind::boolean;
    } else if constexpr (std::is_floating_point_v<T>) {
      if (kind != Kind::number && kind != Kind::bigint) return false;
      value = T(js_number(h.number()));
      return true;
    } else {
      int64_t low = 0;
      int negative = 0;
      if (!js_integer(h.number(), &low, &negative)) return false;
      value = T(low);
      if (negative && !std::is_signed_v<T>) return false;
      if (!negative && low < 0 && std::is_signed_v<T>) return false;  // 2^63 and more
      return std::is_signed_v<T> ? int64_t(value) == low : uint64_t(value) == uint64_t(low);
    }
  }
};

template <>
struct type_caster<std::string> {
  NB_TYPE_CASTER(std::string, "text")
  bool from_python(handle h, uint32_t, cleanup_list*) noexcept {
    if (h.kind() != Kind::text) return false;
    int length = 0;
    char* text = js_text(h.number(), &length);
    value.assign(text, size_t(length));
    ::free(text);
    return true;
  }
};

// --- values as they are ---

template <class T>
  requires std::is_base_of_v<handle, T>
struct type_caster<T> {
  NB_TYPE_CASTER(T, "value")
  bool from_python(handle h, uint32_t, cleanup_list*) noexcept {
    const Kind kind = h.kind();
    if constexpr (std::is_same_v<T, bytes>) return value.load(h);
    if constexpr (std::is_same_v<T, list> || std::is_same_v<T, tuple>)
      if (kind != Kind::list) return false;
    if constexpr (std::is_same_v<T, str>)
      if (kind != Kind::text) return false;
    if constexpr (std::is_same_v<T, callable>)
      if (kind != Kind::function) return false;
    if constexpr (std::is_base_of_v<object, T>)
      static_cast<object&>(value) = borrow(h);
    else
      value = h;
    return true;
  }
};

// --- several ---

template <class T>
struct type_caster<std::optional<T>> {
  NB_TYPE_CASTER(std::optional<T>, "value or null")
  bool from_python(handle h, uint32_t flags, cleanup_list* cleanup) noexcept {
    if (h.is_none()) return value.reset(), true;
    make_caster<T> caster;
    if (!caster.from_python(h, flags, cleanup)) return false;
    value.emplace(taken<T>(caster));
    return true;
  }
};
template <class T>
struct type_caster<std::vector<T>> {
  NB_TYPE_CASTER(std::vector<T>, "list")
  bool from_python(handle h, uint32_t flags, cleanup_list* cleanup) noexcept {
    const int n = h.kind() == Kind::list || h.kind() == Kind::array ? js_length(h.number()) : -1;
    for (int i = 0; i < n; i++) {
      const object each = steal(js_item(h.number(), i));
      make_caster<T> caster;
      if (!caster.from_python(each, flags, cleanup)) return false;
      value.push_back(taken<T>(caster));
    }
    return n >= 0;
  }
};
template <class Several>
struct several_caster {
  NB_TYPE_CASTER(Several, "list")
  bool from_python(handle h, uint32_t flags, cleanup_list* cleanup) noexcept {
    constexpr size_t n = std::tuple_size_v<Several>;
    if (h.kind() != Kind::list || js_length(h.number()) != int(n)) return false;
    return [&]<size_t... i>(std::index_sequence<i...>) {
      const auto one = [&](auto& into, size_t at) {
        const object each = steal(js_item(h.number(), int(at)));
        make_caster<decltype(into)> caster;
        if (!caster.from_python(each, flags, cleanup)) return false;
        into = std::move(caster.value);
        return true;
      };
      return (one(std::get<i>(value), i) && ...);
    }(std::make_index_sequence<n>());
  }
};
template <class A, class B>
struct type_caster<std::pair<A, B>> : several_caster<std::pair<A, B>> {};
template <class T, size_t n>
struct type_caster<std::array<T, n>> : several_caster<std::array<T, n>> {};
template <class... T>
struct type_caster<std::tuple<T...>> : several_caster<std::tuple<T...>> {};

// --- to JavaScript ---

template <class T>
struct is_vector : std::false_type {};
template <class T>
struct is_vector<std::vector<T>> : std::true_type {};
template <class T>
struct is_optional : std::false_type {};
template <class T>
struct is_optional<std::optional<T>> : std::true_type {};
template <class T>
concept Several = requires { std::tuple_size<T>::value; };
template <class T>
concept Shared = requires(T p) { std::shared_ptr<typename T::element_type>(std::move(p)); };

template <class T>
object instance_of(std::shared_ptr<T> p) {
  if (!p) return {};
  using Bare = std::remove_const_t<T>;
  void* object = const_cast<Bare*>(p.get());
  int type = class_number<Bare>::value;
  if constexpr (std::is_polymorphic_v<Bare>) {
    const auto& all = classes();
    const auto own =
        std::find_if(all.begin(), all.end(), [&](const Class& c) { return *c.type == typeid(*p); });
    if (own != all.end()) {
      type = int(own - all.begin());
      object = dynamic_cast<void*>(const_cast<Bare*>(p.get()));
    }
  }
  auto* made = new Instance{type, std::const_pointer_cast<Bare>(std::move(p)), object, {}};
  return steal(js_of_instance(made->type, made));
}

template <class V>
object to_js(V&& value) {
  using T = std::remove_cvref_t<V>;
  if constexpr (std::is_same_v<T, bool>) {
    return steal(js_of_boolean(value));
  } else if constexpr (std::is_integral_v<T>) {
    return steal(js_of_integer(int64_t(value), std::is_signed_v<T>));
  } else if constexpr (std::is_floating_point_v<T>) {
    return steal(js_of_number(value));
  } else if constexpr (std::is_base_of_v<object, T>) {
    return std::forward<V>(value);
  } else if constexpr (std::is_convertible_v<V, std::string_view>) {
    const std::string_view text = value;
    return steal(js_of_text(text.data(), int(text.size())));
  } else if constexpr (is_optional<T>::value) {
    return value ? to_js(*std::forward<V>(value)) : object();
  } else if constexpr (is_vector<T>::value) {
    list made;
    for (auto&& each : value) made.append(to_js(each));
    return std::move(made);
  } else if constexpr (Several<T>) {
    list made;
    std::apply([&](auto&&... each) { (made.append(to_js(each)), ...); }, value);
    return std::move(made);
  } else if constexpr (requires { value.to_js(); }) {
    return value.to_js();
  } else if constexpr (Shared<T>) {
    return instance_of(std::shared_ptr<typename T::element_type>(std::forward<V>(value)));
  } else {
    return instance_of(std::make_shared<T>(std::forward<V>(value)));
  }
}

}  // namespace detail

template <class T>
T cast(handle h) {
  if constexpr (!std::is_void_v<T>) {
    detail::make_caster<T> caster;
    if (!caster.from_python(h, 0, nullptr)) throw cast_error();
    return detail::taken<T>(caster);
  }
}
template <class T>
  requires(!std::is_base_of_v<handle, std::remove_cvref_t<T>>)
object cast(T&& value) {
  return detail::to_js(std::forward<T>(value));
}
template <class... T>
object make_tuple_of(T&&... values) {
  list made;
  (made.append(detail::to_js(std::forward<T>(values))), ...);
  return std::move(made);
}
template <class... T>
tuple make_tuple(T&&... values) {
  tuple made;
  static_cast<object&>(made) = make_tuple_of(std::forward<T>(values)...);
  return made;
}

template <class... A>
object call_with(int function, int self, A&&... arguments) {
  const object given[] = {object(), detail::to_js(std::forward<A>(arguments))...};
  int numbers[sizeof...(A) + 1];
  for (size_t i = 0; i <= sizeof...(A); i++) numbers[i] = given[i].number();
  const int result = js_call(function, self, int(sizeof...(A)), numbers + 1);
  if (result < 0) throw python_error();
  return steal(result);
}
template <class... A>
object handle::operator()(A&&... arguments) const {
  return call_with(value_, 0, std::forward<A>(arguments)...);
}
template <class... A>
object object::operator()(A&&... arguments) const {
  return call_with(value_, self_ ? self_->number() : 0, std::forward<A>(arguments)...);
}

}  // namespace nanobind
