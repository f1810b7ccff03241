// How a source file adds its functions and classes to the extension module: no index to edit.
//
//     ALEATOR_BIND(cells) { nb::class_<Cells>(m, "Cells") ... }
#pragma once

#include <nanobind/nanobind.h>

#include <string_view>

namespace nb = nanobind;

namespace aleator {

struct Binding {
  std::string_view name;
  void (*bind)(nb::module_&);
  Binding* next;
  static inline Binding* first = nullptr;
  Binding(std::string_view n, void (*b)(nb::module_&)) : name(n), bind(b), next(first) {
    first = this;
  }
};

}  // namespace aleator

#define ALEATOR_BIND(stem)                                             \
  static void bind_##stem(nb::module_& m);                             \
  static const ::aleator::Binding binding_##stem{#stem, &bind_##stem}; \
  static void bind_##stem([[maybe_unused]] nb::module_& m)
