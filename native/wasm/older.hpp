// What emscripten 3.1.6's C++ library lacks of C++20; included before every source.
#pragma once

#include <algorithm>
#include <functional>

#if !defined(__cpp_lib_bit_cast)
namespace std {
template <class To, class From>
constexpr To bit_cast(const From& from) noexcept {
  return __builtin_bit_cast(To, from);
}
}  // namespace std
#endif

#if !defined(__cpp_lib_ranges)
namespace std::ranges {
template <class Range, class Compare, class Projection>
void sort(Range& range, Compare compare, Projection projection) {
  std::sort(range.begin(), range.end(), [&](const auto& a, const auto& b) {
    return std::invoke(compare, std::invoke(projection, a), std::invoke(projection, b));
  });
}
}  // namespace std::ranges
#endif

// What its headers expect of the library, and Pyodide's newer one has no more.
#if defined(__PIC__) && _LIBCPP_VERSION < 15000
#include <string>
#include <vector>
template class std::__basic_string_common<true>;
template class std::__vector_base_common<true>;
#endif
