// How a source file adds its functions and classes to the extension module: no index to edit.
//
//     ALEATOR_BIND(cells) { nb::class_<Cells>(m, "Cells") ... }
//
// It includes nanobind and the casters, and with them <memory>, <optional>, <string>, <utility> and
// <vector>.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <string_view>

namespace nb = nanobind;
using namespace nb::literals;  // "name"_a

namespace aleator {

// An argument: T const to read it, n dimensions.
template <class T, int n = 1>
using Array = nb::ndarray<T, nb::ndim<n>, nb::c_contig, nb::device::cpu>;
using Bytes = Array<const uint8_t>;

// A NumPy array that owns the values, of these sizes, or as long as there are values.
template <class... Shape, class T>
nb::ndarray<nb::numpy, T, Shape...> owned_array(std::vector<T>&& values,
                                                std::initializer_list<size_t> sizes = {}) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  if (sizes.size() > 0) return {kept->data(), sizes, owner};
  return {kept->data(), {kept->size()}, owner};
}

// A method that gives a vector as one that gives an array.
template <class C, class T, class... Arguments>
auto as_array(std::vector<T> (C::*method)(Arguments...) const) {
  return [method](const C& c, Arguments... a) { return owned_array((c.*method)(a...)); };
}
template <class C, class T, class... Arguments>
auto as_array(std::vector<T> (C::*method)(Arguments...)) {
  return [method](C& c, Arguments... a) { return owned_array((c.*method)(a...)); };
}

// By name: base classes stand in files of their own, which come first.
inline std::multimap<std::string_view, void (*)(nb::module_&)> bindings;

}  // namespace aleator

#define ALEATOR_BIND(stem)                                                              \
  [[gnu::cold]] static void bind_##stem(nb::module_& m);                                \
  static const auto binding_##stem = ::aleator::bindings.insert({#stem, &bind_##stem}); \
  static void bind_##stem([[maybe_unused]] nb::module_& m)
