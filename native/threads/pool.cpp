#include "threads/pool.hpp"

#include <sched.h>
#include <unistd.h>

#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "threads/float_rules.hpp"

namespace aleator {

// Thrown by a barrier when another thread has failed.
struct Stopped {};

static inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waiting alone for some 3 us, then offering the core to others, then asleep.  Without a job that
// is after about 1 ms, because a token follows soon.  Within one it is after some 100 us: whoever
// is so late has lost its core to another program, and the system moves it to this one once that
// idles.
static constexpr int spins = 60;
static constexpr int idle_yields = 3000;
static constexpr int late_yields = 200;

template <class T>
static void wait_while(const std::atomic<T>& value, T seen, int yields) {
  for (int i = 0; value.load(std::memory_order_acquire) == seen; i++) {
    if (i < spins)
      pause_briefly();
    else if (i < spins + yields)
      sched_yield();
    else
      value.wait(seen, std::memory_order_acquire);
  }
}

// What a fork leaves behind: thrown away whole, because its threads are gone and its locks may be
// held.
struct Pool::Team {
  std::mutex turn;
  pid_t owner = getpid();
  std::vector<std::thread> threads;
  void (*body)(void*, int) = nullptr;
  void* data = nullptr;
  bool stop = false;
  bool begun = false;        // a job has begun here; before, cursors are what a parent left
  std::exception_ptr error;  // of the thread that set `failing`
  std::atomic<bool> failing{false};
  alignas(64) std::atomic<uint32_t> job{0};
  alignas(64) std::atomic<int> arrived{0};
  alignas(64) std::atomic<int> ended{0};  // threads, but thread 0, that are through with the job
  alignas(64) std::atomic<uint32_t> generation{0};
  std::atomic<bool> failed{false};  // `error` is there

  void dismiss();
};

Pool::Pool(int threads) : size_(threads) {
  require(threads >= 1 && threads <= max_threads, "a pool has 1 to ", max_threads, " threads, not ",
          threads);
  cursors_ = std::make_unique<Cursor[]>(size_);
  team_ = new Team;
}

Pool::~Pool() {
  Team* team = team_;
  if (team->owner != getpid()) return;
  team->dismiss();
  delete team;
}

void Pool::Team::dismiss() {
  stop = true;
  job.fetch_add(1, std::memory_order_release);
  job.notify_all();
  for (auto& thread : threads) thread.join();
  threads.clear();
  stop = false;
}

void Pool::start(Team* team) {
  const uint32_t first = team->job.load();
  try {
    for (int t = 1; t < size_; t++)
      team->threads.emplace_back([this, team, t, first] {
        for (uint32_t seen = first;; seen++) {
          wait_while(team->job, seen, idle_yields);
          if (team->stop) return;
          perform(*team, team->body, team->data, t);
          team->ended.fetch_add(1, std::memory_order_release);
          team->ended.notify_one();
        }
      });
  } catch (...) {
    team->dismiss();
    throw;
  }
}

void Pool::refuse_while_looking() {
  if (Watch::looking())
    throw std::runtime_error("a signal handler cannot compute while the thread it stopped does");
}

void Pool::run_job(void (*body)(void*, int), void* data, Watch* watch) {
  refuse_while_looking();
  Team* team = team_;
  if (team->owner != getpid()) {
    auto* fresh = new Team;
    if (team_.compare_exchange_strong(team, fresh))
      team = fresh;
    else
      delete fresh;
  }
  std::lock_guard lock(team->turn);
  if (!team->begun) reset_cursors();
  team->begun = true;
  watch_ = watch;
  if (size_ > 1) {
    if (team->threads.empty()) start(team);
    team->body = body;
    team->data = data;
    team->job.fetch_add(1, std::memory_order_release);
    team->job.notify_all();
  }
  perform(*team, body, data, 0);
  for (int ended; (ended = team->ended.load(std::memory_order_acquire)) < size_ - 1;)
    wait_while(team->ended, ended, late_yields);
  team->ended.store(0, std::memory_order_relaxed);
  reset_cursors();
  if (!team->failed.load(std::memory_order_relaxed)) return;
  team->arrived.store(0, std::memory_order_relaxed);
  team->failing.store(false, std::memory_order_relaxed);
  team->failed.store(false, std::memory_order_relaxed);
  std::rethrow_exception(std::exchange(team->error, nullptr));
}

void Pool::perform(Team& team, void (*body)(void*, int), void* data, int thread) {
  const FloatRules rules;
  try {
    body(data, thread);
  } catch (const Stopped&) {
  } catch (...) {
    if (team.failing.exchange(true)) return;
    team.error = std::current_exception();
    team.failed.store(true, std::memory_order_release);
    team.generation.fetch_add(1, std::memory_order_release);  // after it: who waits looks at it
    team.generation.notify_all();
  }
}

void Pool::reset_cursors() {
  for (int t = 0; t < size_; t++) cursors_[t].taken.store(0, std::memory_order_relaxed);
}

void Pool::barrier() {
  Team* team = team_.load(std::memory_order_relaxed);
  if (size_ == 1) return reset_cursors();
  const uint32_t generation = team->generation.load(std::memory_order_acquire);
  if (team->arrived.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
    team->arrived.store(0, std::memory_order_relaxed);
    reset_cursors();
    team->generation.store(generation + 1, std::memory_order_release);
    team->generation.notify_all();
    return;
  }
  if (!team->failed.load(std::memory_order_relaxed))
    wait_while(team->generation, generation, late_yields);
  if (team->failed.load(std::memory_order_relaxed)) throw Stopped{};
}

}  // namespace aleator
