// As much of nanobind as the bindings of this folder's parent use, with JavaScript's values in
// place of Python's: for WebAssembly, where #include <nanobind/...> leads here.  What names and
// signatures mean is nanobind's documentation's; js/src/native.js is the other side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "values.h"

// clang-format off
#include "casters.h"
#include "ndarrays.h"
#include "functions.h"
// clang-format on
