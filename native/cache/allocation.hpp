// The allocator of everything that the cells grow at run time.  Tests make the n-th allocation
// fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace aleator::cache {

// Allocations of this thread that still succeed; negative: all.
inline thread_local int64_t allocations_left = -1;

inline void count_allocation() {
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
}

template <typename T>
struct Allocator {
  using value_type = T;
  Allocator() = default;
  template <typename U>
  Allocator(const Allocator<U>&) {}
  T* allocate(size_t n) {
    count_allocation();
    return std::allocator<T>().allocate(n);
  }
  void deallocate(T* p, size_t n) { std::allocator<T>().deallocate(p, n); }
  template <typename U>
  bool operator==(const Allocator<U>&) const {
    return true;
  }
};

template <typename T>
using Vector = std::vector<T, Allocator<T>>;

}  // namespace aleator::cache
