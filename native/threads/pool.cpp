#include "threads/pool.hpp"

#include <sched.h>
#include <unistd.h>

#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace aleator {

static inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waiting alone for some 3 us, then offering the core to others; without a job for about 1 ms,
// because a token follows soon, then asleep.
static constexpr int spins = 60;
static constexpr int idle_yields = 3000;

// What a fork leaves behind: thrown away whole, because its threads are gone and its locks may be
// held.
struct Pool::Team {
  std::mutex turn;
  pid_t owner = getpid();
  std::vector<std::thread> threads;
  void (*body)(void*, int) = nullptr;
  void* data = nullptr;
  bool stop = false;
  alignas(64) std::atomic<uint32_t> job{0};
  alignas(64) std::atomic<int> arrived{0};
  alignas(64) std::atomic<uint32_t> generation{0};

  void dismiss();
};

Pool::Pool(int threads) : size_(threads) {
  if (threads < 1 || threads > max_threads)
    throw std::invalid_argument("a pool has 1 to " + std::to_string(max_threads) +
                                " threads, not " + std::to_string(threads));
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
          for (int i = 0; team->job.load(std::memory_order_acquire) == seen; i++) {
            if (i < spins)
              pause_briefly();
            else if (i < spins + idle_yields)
              sched_yield();
            else
              team->job.wait(seen, std::memory_order_acquire);
          }
          if (team->stop) return;
          team->body(team->data, t);
          barrier();
        }
      });
  } catch (...) {
    team->dismiss();
    throw;
  }
}

void Pool::run_job(void (*body)(void*, int), void* data) {
  Team* team = team_;
  if (team->owner != getpid()) {
    auto* fresh = new Team;
    if (team_.compare_exchange_strong(team, fresh))
      team = fresh;
    else
      delete fresh;
  }
  std::lock_guard lock(team->turn);
  if (size_ == 1) {
    body(data, 0);
    barrier();
    return;
  }
  if (team->threads.empty()) start(team);
  team->body = body;
  team->data = data;
  team->job.fetch_add(1, std::memory_order_release);
  team->job.notify_all();
  body(data, 0);
  barrier();
}

void Pool::barrier() {
  Team* team = team_.load(std::memory_order_relaxed);
  if (size_ == 1) {
    cursors_[0].taken.store(0, std::memory_order_relaxed);
    return;
  }
  const uint32_t generation = team->generation.load(std::memory_order_acquire);
  if (team->arrived.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
    team->arrived.store(0, std::memory_order_relaxed);
    for (int t = 0; t < size_; t++) cursors_[t].taken.store(0, std::memory_order_relaxed);
    team->generation.store(generation + 1, std::memory_order_release);
    return;
  }
  for (int i = 0; team->generation.load(std::memory_order_acquire) == generation; i++) {
    if (i < spins)
      pause_briefly();
    else
      sched_yield();  // more threads than free cores: let the others get here
  }
}

}  // namespace aleator
