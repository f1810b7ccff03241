// How a thread sleeps until a number changes, and who changes it wakes it.
#pragma once

#include <atomic>
#include <cstdint>

namespace aleator {

#if defined(__wasm_atomics__)  // where the C++ library asks for the time again and again

// For so many nanoseconds at most, unless negative; whether they have passed.
template <class T>
inline bool sleep_while(const std::atomic<T>& value, T seen, int64_t most = -1) {
  void* at = const_cast<void*>(static_cast<const void*>(&value));
  constexpr int timed_out = 2;
  if constexpr (sizeof(T) == 8)
    return __builtin_wasm_memory_atomic_wait64(static_cast<int64_t*>(at), int64_t(seen), most) ==
           timed_out;
  else
    return __builtin_wasm_memory_atomic_wait32(static_cast<int32_t*>(at), int32_t(seen), most) ==
           timed_out;
}
template <class T>
inline void wake(std::atomic<T>& value) {
  __builtin_wasm_memory_atomic_notify(reinterpret_cast<int32_t*>(&value), ~0u);
}

#else

template <class T>
inline void sleep_while(const std::atomic<T>& value, T seen) {
  value.wait(seen, std::memory_order_acquire);
}
template <class T>
inline void wake(std::atomic<T>& value) {
  value.notify_all();
}

#endif

static inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace aleator
