// What both kinds of chain have: samplers in order, the history that they share, and counters.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "samplers/sampler.hpp"

namespace aleator {

// Who uses a chain, which serves one thread at a time: 0, or the address of a mark of that thread,
// plus `kReads` while it only reads.
using InUse = std::atomic<uintptr_t>;
inline constexpr uintptr_t kReads = 1;

inline uintptr_t this_thread() {
  alignas(2) static thread_local char mark;
  return reinterpret_cast<uintptr_t>(&mark);
}

// Waits a moment for another thread that uses a chain.
using Pause = void (*)();
inline void pause() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

// Held during a call. Calls of two threads at once are refused; reads wait, and are waited for.
class Busy {
 public:
  explicit Busy(InUse& user, Pause pause = aleator::pause, uintptr_t reads = 0) : user_(user) {
    const uintptr_t me = this_thread();
    std::chrono::steady_clock::time_point latest;
    for (uintptr_t other = 0;
         !user_.compare_exchange_strong(other, me | reads, std::memory_order_acquire); other = 0) {
      if ((other & ~kReads) == me)
        throw LogitsError(
            "the chain is in use by this thread: a sampler or a callback that runs within one of "
            "its calls cannot call it again; let it use a clone()");
      const auto now = std::chrono::steady_clock::now();
      if (latest == decltype(latest){}) latest = now + std::chrono::seconds(10);
      // In a forked child the other thread does not exist.
      if (!((other | reads) & kReads) || now > latest)
        throw LogitsError(
            "the chain is in use by another thread: give each thread its own clone()");
      pause();
    }
  }
  ~Busy() { user_.store(0, std::memory_order_release); }
  Busy(const Busy&) = delete;

 private:
  InUse& user_;
};

template <typename S>
class ChainBase {
 public:
  using Samplers = std::vector<std::shared_ptr<S>>;

  const History& history() const { return history_; }
  uint64_t position() const { return position_; }  // tokens generated, unless it was set
  void restart() {                                 // a new text begins: constraints start anew
    for (const auto& sampler : samplers_) sampler->restart();
  }
  void accept(int32_t token, bool generated) {
    History::check_token(token);
    history_.push(token, generated);
    position_ += generated;
    size_t done = 0;
    try {
      for (; done < samplers_.size(); ++done) samplers_[done]->accept(history_);
    } catch (...) {  // only a constraint or a user's sampler can: take it back from those before it
      while (done-- > 0) samplers_[done]->unaccept(history_);
      take_back();
      throw;
    }
  }
  void rollback(int64_t n) {
    history_.check_rollback(n);
    for (; n > 0; --n) {
      for (const auto& sampler : samplers_) sampler->unaccept(history_);
      take_back();
    }
  }
  void reset() {
    for (const auto& sampler : samplers_) sampler->reset();
    history_ = {};
    position_ = 0;
  }
  int64_t n_sampled() const { return n_sampled_; }
  double seconds() const { return seconds_; }
  void reset_perf() { seconds_ = 0, n_sampled_ = 0; }

  InUse in_use = 0;

 protected:
  explicit ChainBase(Samplers samplers) : samplers_(std::move(samplers)) {}
  ChainBase(const ChainBase& other) : history_(other.history_), position_(other.position_) {
    for (const auto& sampler : other.samplers_) samplers_.push_back(sampler->clone());
  }

  void swap(ChainBase& other) {
    samplers_.swap(other.samplers_);
    std::swap(history_, other.history_);
    std::swap(position_, other.position_);
  }
  using Clock = std::chrono::steady_clock;
  // Counts a token that was chosen since `began` and accepted; returns it.
  int32_t sampled(Clock::time_point began) {
    seconds_ += std::chrono::duration<double>(Clock::now() - began).count();
    ++n_sampled_;
    return history_.tokens.back();
  }
  [[noreturn]] static void refuse_no_selection() {
    throw ParameterError("samplers", "the chain selects no token: end it with Dist or Greedy");
  }

  Samplers samplers_;
  History history_;
  uint64_t position_ = 0;

 private:
  void take_back() {
    position_ -= history_.generated.back();
    history_.pop();
  }

  double seconds_ = 0;
  int64_t n_sampled_ = 0;
};

}  // namespace aleator
