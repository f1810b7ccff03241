// A small team of threads which runs one job at a time.
//
//     pool.run([&](int thread) {
//       pool.each(thread, n_units, [&](int64_t unit) { ... });   // each unit once, on some thread
//     });
//
// Threads that wait spin for some microseconds, offer their cores, and then sleep.  A forked child
// has none of its parent's threads: the pool notices and starts its own there.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>

namespace aleator {

// What the calling thread looks at about ten times a second while a job runs, between two units of
// work; it may throw, which ends the job.  Meanwhile the pool takes no other job of this thread.
class Watch {
 public:
  explicit Watch(void (*check)()) : check_(check) {}
  void look() {
    if (++looks_ % 8) return;  // the clock costs more than a little unit
    const auto now = Clock::now();
    if (now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now, looking_ = true;
    struct Done {
      ~Done() { looking_ = false; }
    } done;
    check_();
  }
  static bool looking() { return looking_; }

 private:
  using Clock = std::chrono::steady_clock;
  void (*check_)();
  Clock::time_point last_ = Clock::now();
  unsigned looks_ = 0;
  static inline thread_local bool looking_ = false;
};

class Pool {
 public:
  static constexpr int max_threads = 256;

  explicit Pool(int threads);  // the calling thread counts as one; std::invalid_argument
                               // outside 1..max_threads
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int size() const { return size_; }

  // Calls f(thread) once on each thread, thread 0 being the caller; returns when all have returned.
  // Callers on several threads take turns.  If f throws on one thread, the others end at their next
  // barrier, and the first exception is thrown here; the pool is as before.  Threads round to
  // nearest and keep subnormal numbers, whatever the caller has set.
  template <class F>
  void run(F&& f, Watch* watch = nullptr) {
    run_job(Body(f), false, watch);
  }
  // The same, but perhaps on the first threads alone, while other programs keep the others from
  // working.  So all work must be in `split`, or thread 0's.
  template <class F>
  void run_adapting(F&& f, Watch* watch = nullptr) {
    run_job(Body(f), true, watch);
  }
  // std::runtime_error where this thread is in the check of a watch, and would wait for itself.
  static void refuse_while_looking();
  // For a thread of a pool that cannot go on, as WebAssembly's where an instruction fails: its job
  // ends with StateError, and the pool takes no other.
  static void thread_ends();

  // Calls f(unit) for each unit in [0, units), shared among the threads, which must all call it.  A
  // thread starts in its own contiguous part, so that memory is read in order, and then takes what
  // is left of the others' parts.
  template <class F>
  void split(int thread, int64_t units, F&& f) {
    share(cursors_.get(), thread, units, [&](int64_t unit) {
      if (thread == 0 && watch_) watch_->look();
      f(unit);
    });
  }
  // A split of little work that the split after it needs, without a barrier between them: there
  // each thread calls `await_ahead` with the same number before it reads what these units made.
  template <class F>
  void split_ahead(int thread, int64_t units, F&& f) {
    share(ahead_.get(), thread, units, [&](int64_t unit) {
      f(unit);
      done_ahead(1, units);
    });
  }
  void await_ahead(int64_t units) {
    if (ahead_done_.load(std::memory_order_acquire) < units) wait_ahead(units);
  }

  void barrier();
  // A split, and the barrier that must stand before the next one.
  template <class F>
  void each(int thread, int64_t units, F&& f) {
    split(thread, units, f);
    barrier();
  }
  // A split of [0, n) in pieces of `size`, the last perhaps smaller: f(begin, end).
  template <class F>
  void split_pieces(int thread, int64_t n, int64_t size, F&& f) {
    split(thread, (n + size - 1) / size,
          [&](int64_t piece) { f(piece * size, (piece + 1) * size < n ? (piece + 1) * size : n); });
  }

 private:
  struct Team;
  struct alignas(64) Cursor {
    std::atomic<int64_t> taken{0};
  };
  // What a job calls on each thread, which outlives the job.
  struct Body {
    void (*call)(void*, int) = nullptr;
    void* data = nullptr;
    Body() = default;
    template <class F>
    explicit Body(F& f)
        : call([](void* of, int thread) { (*static_cast<F*>(of))(thread); }),
          data(const_cast<void*>(static_cast<const void*>(&f))) {}
  };
  void run_job(Body body, bool adapts, Watch* watch);
  Team* own_team();
  void work(Team* team, Watch* watch);
  void perform(Team& team, int thread);
  void fail(Team& team, std::exception_ptr error);
  template <class T>
  void wait_while(const std::atomic<T>& value, T seen, int yields);
  template <class T>
  bool sleep(Team& team, const std::atomic<T>& value, T seen);
  int64_t progress(const Team& team) const;
  void abandon(Team& team);
  void start(Team* team);
  void reset_cursors();
  template <class F>
  void share(Cursor* cursors, int thread, int64_t units, F&& f) {
    for (int k = 0; k < size_; k++) {
      const int owner = (thread + k) % size_;
      const int64_t begin = units * owner / size_, end = units * (owner + 1) / size_;
      std::atomic<int64_t>& taken = cursors[owner].taken;
      if (begin + taken.load(std::memory_order_relaxed) >= end) continue;
      for (int64_t unit; (unit = begin + taken.fetch_add(1, std::memory_order_relaxed)) < end;)
        f(unit);
    }
  }
  void done_ahead(int64_t n, int64_t of);
  void wait_ahead(int64_t units);

  const int size_;
  std::unique_ptr<Cursor[]> cursors_, ahead_;
  alignas(64) std::atomic<int64_t> ahead_done_{0};  // units
  Watch* watch_ = nullptr;                          // of the job that runs; thread 0 reads it
  std::atomic<Team*> team_;
};

}  // namespace aleator
