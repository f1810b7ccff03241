// Which thread is in a call of a chain: it serves one at a time.
#pragma once

#include <atomic>
#include <thread>

#include "errors.hpp"

namespace aleator {

using InUse = std::atomic<std::thread::id>;

// Held during a call.
class Busy {
 public:
  explicit Busy(InUse& user) : user_(user) {
    std::thread::id nobody, me = std::this_thread::get_id();
    if (user_.compare_exchange_strong(nobody, me, std::memory_order_acquire)) return;
    if (nobody == me)
      throw LogitsError(
          "the chain is in use by this thread: a sampler or a callback that runs within one of its "
          "calls cannot call it again; let it use a clone()");
    throw LogitsError("the chain is in use by another thread: give each thread its own clone()");
  }
  ~Busy() { user_.store({}, std::memory_order_release); }
  Busy(const Busy&) = delete;

 private:
  InUse& user_;
};

}  // namespace aleator
