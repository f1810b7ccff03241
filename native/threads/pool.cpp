#include "threads/pool.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "threads/float_rules.hpp"
#include "threads/waiting.hpp"

namespace aleator {

using Clock = std::chrono::steady_clock;
using Nanoseconds = std::chrono::nanoseconds;

// Thrown by a barrier when another thread has failed.
struct Stopped {};

// More units than any split has: a thread has failed, and nobody waits for its.
static constexpr int64_t all_done = int64_t(1) << 62;

// Waiting alone for some 3 us, then offering the core to others, then asleep.  Without a job that
// is after about 1 ms, because a token follows soon.  Within one it is after some 100 us: whoever
// is so late has lost its core to another program, and the system moves it to this one once that
// idles.
#if defined(__wasm_atomics__)  // it can do no more than look: for as long as being woken takes
static constexpr int spins = 20000, idle_yields = 0, late_yields = 0;
#else
static constexpr int spins = 60;
static constexpr int idle_yields = 3000;
static constexpr int late_yields = 200;
#endif

// Whether the jobs of this pool's caller are what the thread is in.
static thread_local const Pool* leads = nullptr;

// The pool that this thread works for, other than as a caller.
static thread_local Pool* serves = nullptr;

// How many threads take part in jobs that adapt.  Where the caller has waited for so long in some
// jobs that one thread less would have been no slower, there is one less for a while; then all are
// tried again.
struct Helpers {
  int together(int size) {
    if (left_ == 0) return size;
    left_--;
    return fewer_;
  }

  void observe(int together, int size, Nanoseconds took) {
    late_ = waited * together > took ? late_ + 1 : 0;
    if (late_ == 0 && together == size && good_ < calm && ++good_ == calm) pause_ = shortest;
    if (late_ < patience) return;
    late_ = good_ = 0;
    fewer_ = together - 1;
    left_ = pause_;
    if (together == size) pause_ = std::min(2 * pause_, longest);
  }

  Nanoseconds waited{};  // by the caller, in this job

  static constexpr int patience = 3, shortest = 16, longest = 1024, calm = 64;  // jobs
  int late_ = 0, good_ = 0, fewer_ = 1, left_ = 0, pause_ = shortest;
};

// What a fork leaves behind: thrown away whole, because its threads are gone and its locks may be
// held.
struct Pool::Team {
  std::mutex turn;
  pid_t owner = getpid();
  std::vector<std::thread> threads;
  Body body;
  int together = 1;  // of the pool's threads those in the job, the first ones
  Helpers helpers;
  bool begun = false;        // a job has begun here; before, cursors are what a parent left
  bool abandoned = false;    // `sleep` has found that threads are gone
  int looks = 0;             // of it, in which nothing had been done
  int64_t done = 0;          // of its last look
  std::exception_ptr error;  // of the thread that set `failing`
  std::atomic<bool> failing{false};
  static constexpr uint32_t numbered = 512;  // what a job's number is multiplied by
  // Its number, and how many threads are in it; of the last one 0: it ends them.  One word, so that
  // who was left out of a job cannot take a part of the next for one of that.
  alignas(64) std::atomic<uint32_t> job{0};
  alignas(64) std::atomic<int> arrived{0};
  alignas(64) std::atomic<int> ended{0};  // threads, but thread 0, that are through with the job
  alignas(64) std::atomic<uint32_t> generation{0};
  std::atomic<bool> failed{false};  // `error` is there
  std::atomic<bool> lost{false};    // a thread has ended within a job

  void tell(int threads);
  void dismiss();
};

// What is written before a notification is ordered with the look for who sleeps, as by `release`
// alone it is not on x86-64: a store could wait behind that look, and nobody be woken.
template <class T>
static void write_and_wake(std::atomic<T>& value, T now) {
  value.store(now, std::memory_order_seq_cst);
  wake(value);
}

// Adds what takes longer than spinning to what the caller of a job has waited.
template <class T>
void Pool::wait_while(const std::atomic<T>& value, T seen, int yields) {
  for (int i = 0; i < spins; i++) {
    if (value.load(std::memory_order_acquire) != seen) return;
    pause_briefly();
  }
  Team* mine = leads == this ? team_.load(std::memory_order_relaxed) : nullptr;
  const Clock::time_point began = mine ? Clock::now() : Clock::time_point();
  for (int i = 0; value.load(std::memory_order_acquire) == seen; i++) {
    if (i < yields)
      sched_yield();
    else if (!mine)
      sleep_while(value, seen);
    else if (!sleep(*mine, value, seen))
      break;
  }
  if (mine) mine->helpers.waited += Clock::now() - began;
}

#if defined(__wasm_atomics__)

// js/src/threads.js
extern "C" {
#define ALEATOR_HOST(name) __attribute__((import_module("env"), import_name(#name)))
int threads_are_lost(int looks) ALEATOR_HOST(threads_are_lost);
void end_thread(std::thread::native_handle_type thread) ALEATOR_HOST(end_thread);
#undef ALEATOR_HOST
}

// Nobody tells that a worker was ended from outside.  So the caller looks ten times a second
// whether any thread has done something since; false: it waits for them no more.
template <class T>
bool Pool::sleep(Team& team, const std::atomic<T>& value, T seen) {
  static constexpr int64_t look = 100'000'000;  // ns
  if (!sleep_while(value, seen, look)) return true;
  const int64_t done = progress(team);
  team.looks = done == team.done ? team.looks + 1 : 0;
  team.done = done;
  if (!threads_are_lost(team.looks)) return true;
  abandon(team);
  return false;
}

// Another number whenever a thread has done something within a job.
int64_t Pool::progress(const Team& team) const {
  int64_t made =
      ahead_done_.load() + team.arrived.load() + team.ended.load() + team.generation.load();
  for (int t = 0; t < size_; t++) made += cursors_[t].taken.load() + ahead_[t].taken.load();
  return made;
}

void Pool::abandon(Team& team) {
  for (auto& thread : team.threads) end_thread(thread.native_handle());
  team.abandoned = team.lost = team.failing = team.failed = true;
  team.error = std::make_exception_ptr(StateError(
      "a thread of the pool does nothing any more: its worker was ended, by the system or by "
      "terminate(): load the model again"));
}

#else

template <class T>
bool Pool::sleep(Team&, const std::atomic<T>& value, T seen) {
  sleep_while(value, seen);
  return true;
}

#endif

Pool::Pool(int threads) : size_(threads) {
  require(threads >= 1 && threads <= max_threads, "a pool has 1 to ", max_threads, " threads, not ",
          threads);
  cursors_ = std::make_unique<Cursor[]>(size_);
  ahead_ = std::make_unique<Cursor[]>(size_);
  auto team = std::make_unique<Team>();
#if defined(__wasm_atomics__)
  start(team.get());  // JavaScript has made workers for them, which wait
#endif
  team_ = team.release();
}

Pool::~Pool() {
  Team* team = team_;
  if (team->owner != getpid() || leads == this) return;  // in a job that did not end
#if defined(__wasm_atomics__)
  try {
    run([](int) {});  // finds threads that are gone, for which nobody must wait
  } catch (...) {
  }
#endif
  if (team->abandoned) return;
  team->dismiss();
  delete team;
}

void Pool::Team::tell(int threads) {
  const uint32_t number = job.load(std::memory_order_relaxed) / numbered + 1;
  write_and_wake(job, number * numbered + uint32_t(threads));
}

void Pool::Team::dismiss() {
  tell(0);
  for (auto& thread : threads) thread.join();
  threads.clear();
}

void Pool::start(Team* team) {
  const uint32_t first = team->job.load();
  try {
    for (int t = 1; t < size_; t++)
      team->threads.emplace_back([this, team, t, first] {
        serves = this;
        for (uint32_t seen = first;;) {
          wait_while(team->job, seen, idle_yields);
          seen = team->job.load(std::memory_order_acquire);
          const int together = int(seen % Team::numbered);
          if (together == 0) return;
          if (t >= together) continue;  // nobody waits for it, or lets it see more
          perform(*team, t);
          team->ended.fetch_add(1, std::memory_order_release);
          wake(team->ended);
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
  if (leads)  // WebAssembly, where an instruction has failed
    throw StateError("a job of this thread did not end: load the model in another worker");
}

void Pool::run_job(Body body, bool adapts, Watch* watch) {
  refuse_while_looking();
  Team* team = own_team();
  std::lock_guard lock(team->turn);
  team->body = body;
  team->together = adapts ? team->helpers.together(size_) : size_;
  const Clock::time_point began = Clock::now();
  team->helpers.waited = {};
  work(team, watch);
  if (adapts && team->together > 1)
    team->helpers.observe(team->together, size_, Clock::now() - began);
}

Pool::Team* Pool::own_team() {
  Team* team = team_;
  if (team->owner != getpid()) {
    auto* fresh = new Team;
    if (team_.compare_exchange_strong(team, fresh))
      team = fresh;
    else
      delete fresh;
  }
  return team;
}

// Does a job on team->together threads.
void Pool::work(Team* team, Watch* watch) {
  if (!team->begun) reset_cursors();
  team->begun = true;
  if (team->lost) throw StateError("a thread of the pool has ended: load the model again");
  watch_ = watch;
  const int others = team->together - 1;
  if (others > 0) {
    if (team->threads.empty()) start(team);
    team->tell(team->together);
  }
  leads = this;
  perform(*team, 0);
  for (int ended;
       !team->abandoned && (ended = team->ended.load(std::memory_order_acquire)) < others;)
    wait_while(team->ended, ended, late_yields);
  leads = nullptr;
  team->ended.store(0, std::memory_order_relaxed);
  reset_cursors();
  if (!team->failed.load(std::memory_order_relaxed)) return;
  team->arrived.store(0, std::memory_order_relaxed);
  team->failing.store(false, std::memory_order_relaxed);
  team->failed.store(false, std::memory_order_relaxed);
  std::rethrow_exception(std::exchange(team->error, nullptr));
}

void Pool::perform(Team& team, int thread) {
  const FloatRules rules;
  try {
    team.body.call(team.body.data, thread);
  } catch (...) {  // of Stopped `fail` knows already
    fail(team, std::current_exception());
  }
}

// The first error ends the job.
void Pool::fail(Team& team, std::exception_ptr error) {
  if (team.failing.exchange(true)) return;
  team.error = std::move(error);
  team.failed.store(true, std::memory_order_release);
  team.generation.fetch_add(1, std::memory_order_release);  // after it: who waits looks at it
  wake(team.generation);
  done_ahead(all_done, all_done);
}

void Pool::thread_ends() {
  if (!serves) return;
  Team& team = *serves->team_;
  team.lost = true;
  serves->fail(team, std::make_exception_ptr(StateError("a thread ended within a job")));
  team.ended.fetch_add(1, std::memory_order_release);
  wake(team.ended);
}

void Pool::reset_cursors() {
  for (int t = 0; t < size_; t++) {
    cursors_[t].taken.store(0, std::memory_order_relaxed);
    ahead_[t].taken.store(0, std::memory_order_relaxed);
  }
  ahead_done_.store(0, std::memory_order_relaxed);
}

// n more are done; the last of them, or a failure, ends the wait.
void Pool::done_ahead(int64_t n, int64_t of) {
  if (ahead_done_.fetch_add(n, std::memory_order_seq_cst) + n >= of) wake(ahead_done_);
}

void Pool::wait_ahead(int64_t units) {
  Team* team = team_.load(std::memory_order_relaxed);
  for (int64_t done; !team->failed.load(std::memory_order_relaxed) &&
                     (done = ahead_done_.load(std::memory_order_acquire)) < units;)
    wait_while(ahead_done_, done, late_yields);
  if (team->failed.load(std::memory_order_relaxed)) throw Stopped{};
}

void Pool::barrier() {
  Team* team = team_.load(std::memory_order_relaxed);
  if (team->together == 1) return reset_cursors();
  const uint32_t generation = team->generation.load(std::memory_order_acquire);
  if (team->arrived.fetch_add(1, std::memory_order_acq_rel) == team->together - 1) {
    team->arrived.store(0, std::memory_order_relaxed);
    reset_cursors();
    write_and_wake(team->generation, generation + 1);
    return;
  }
  if (!team->failed.load(std::memory_order_relaxed))
    wait_while(team->generation, generation, late_yields);
  if (team->failed.load(std::memory_order_relaxed)) throw Stopped{};
}

}  // namespace aleator
