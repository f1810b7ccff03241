// Numbers from the beginning of a cache line on, so that a vector of them lies in one.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace aleator {

template <class T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t line{64};
  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), line)); }
  void deallocate(T* p, size_t) { ::operator delete(p, line); }
  bool operator==(const LineAllocator&) const = default;
};
template <class T>
using Lines = std::vector<T, LineAllocator<T>>;

}  // namespace aleator
