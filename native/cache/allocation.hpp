// What the cache's books have in common: the allocator of everything that they grow at run time, of
// which tests make the n-th allocation fail, and how a journal sees them.
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

// What keeps an undo log of its own: a journal begins, commits and takes it back with all else.
// begin may throw, and then has done nothing.
class Part {
 public:
  virtual void begin() = 0;
  virtual void commit() noexcept = 0;
  virtual void rollback() noexcept = 0;

 protected:
  ~Part() = default;
};

}  // namespace aleator::cache
