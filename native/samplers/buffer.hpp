// A std::vector whose resize() leaves new elements uninitialised: what grows is written right away,
// and clearing a row's worth of memory first would cost as much as reading the row.
#pragma once

#include <memory>
#include <utility>
#include <vector>

namespace aleator {

template <typename T>
struct Uninitialised : std::allocator<T> {
  template <typename U>
  struct rebind {
    using other = Uninitialised<U>;
  };
  template <typename U>
  void construct(U* at) noexcept {
    ::new (static_cast<void*>(at)) U;
  }
  template <typename U, typename... Args>
  void construct(U* at, Args&&... args) {
    ::new (static_cast<void*>(at)) U(std::forward<Args>(args)...);
  }
};

template <typename T>
using Buffer = std::vector<T, Uninitialised<T>>;

}  // namespace aleator
