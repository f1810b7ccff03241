// Jobs that throw on some thread, before, between and after barriers, or while others wait for what
// it does ahead, what the next job does, what threads see of each other behind a barrier, and who
// is left out of jobs that adapt.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "threads/pool.hpp"

// How many threads do a job whose second thread comes so late; -1: it was not done once.
static int adapting(aleator::Pool& pool, int late_ms) {
  std::atomic<int> threads{0}, units{0};
  pool.run_adapting([&](int thread) {
    threads++;
    if (thread == 1) std::this_thread::sleep_for(std::chrono::milliseconds(late_ms));
    pool.barrier();
    pool.split(thread, 1000, [&](int64_t) { units++; });
  });
  return units == 1000 ? threads.load() : -1;
}

static bool leaves_out_who_is_late() {
  aleator::Pool pool(2);
  int jobs = 0;
  while (adapting(pool, 5) == 2)
    if (++jobs == 300) return false;
  for (int alone = 1; alone < 16; alone++)
    if (adapting(pool, 0) != 1) return false;
  return adapting(pool, 0) == 2;
}

// A pool may end while who was left out of its last job looks what there is to do.
static bool ends_with_some_left_out() {
  for (int round = 0; round < 20; round++) {
    aleator::Pool pool(3);
    int jobs = 0;
    while (adapting(pool, 1) == 3)
      if (++jobs == 300) return false;
  }
  return true;
}

// Whether each unit of a split sees what all units ahead of it made, one part after the other.
static bool sees_what_is_made_ahead(aleator::Pool& pool) {
  std::vector<int> made(9);
  std::atomic<int> units{0}, right{0};
  pool.run([&](int thread) {
    for (int part = 1; part < 4; part++) {
      pool.split_ahead(thread, int64_t(made.size()), [&](int64_t unit) {
        if (unit == 8) std::this_thread::sleep_for(std::chrono::microseconds(300));
        made[unit] += part, units++;
      });
      pool.split(thread, 100, [&](int64_t) {
        pool.await_ahead(int64_t(made.size()));
        right += std::count(made.begin(), made.end(), part * (part + 1) / 2) == 9;
      });
      pool.barrier();
    }
  });
  return units == 27 && right == 300;
}

// A unit ahead throws, and threads that wait for it end.
static bool ends_when_what_is_ahead_fails(aleator::Pool& pool, int bad) {
  try {
    pool.run([&](int thread) {
      pool.split_ahead(thread, pool.size(), [&](int64_t unit) {
        if (unit != bad) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(bad));  // the others may sleep
        throw std::runtime_error("ahead");
      });
      pool.split(thread, 10, [&](int64_t) { pool.await_ahead(pool.size()); });
      pool.barrier();
    });
  } catch (const std::runtime_error& error) {
    return error.what() == std::string("ahead");
  }
  return false;
}

int main() {
  if (!leaves_out_who_is_late() || !ends_with_some_left_out()) {
    std::printf("jobs do not adapt\n");
    return 1;
  }
  for (int size = 1; size <= 4; size++) {
    aleator::Pool pool(size);
    for (int round = 0; round < 400; round++) {
      const int bad = round % size, where = round / size % 3;
      bool thrown = false;
      try {
        pool.run([&](int thread) {
          for (int part = 0; part < 3; part++) {
            if (thread == bad && part == where) {
              if (round % 40 < size) std::this_thread::sleep_for(std::chrono::milliseconds(2));
              throw std::runtime_error("part");  // the others may sleep
            }
            pool.split(thread, 100, [](int64_t) {});
            pool.barrier();
          }
        });
      } catch (const std::runtime_error& error) {
        thrown = error.what() == std::string("part");
      }
      std::atomic<int> units{0}, second{0};
      pool.run([&](int thread) {
        pool.split(thread, 1000, [&](int64_t) { units++; });
        pool.barrier();
        pool.split(thread, 77, [&](int64_t) { second++; });
      });
      std::vector<int> written(size), seen(size);
      pool.run([&](int thread) {
        written[thread] = round;
        pool.barrier();
        seen[thread] = written[(thread + 1) % size];
      });
      const bool ahead = round % 40 >= size || (ends_when_what_is_ahead_fails(pool, bad) &&
                                                sees_what_is_made_ahead(pool));
      const bool ordered = std::count(seen.begin(), seen.end(), round) == size;
      if (!thrown || units != 1000 || second != 77 || !ordered || !ahead) {
        std::printf("size %d round %d: thrown %d, units %d and %d, ordered %d, ahead %d\n", size,
                    round, thrown, units.load(), second.load(), ordered, ahead);
        return 1;
      }
    }
  }
}
