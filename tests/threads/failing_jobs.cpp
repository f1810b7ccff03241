// Jobs that throw on some thread, before, between and after barriers, what the next job does, and
// what threads see of each other behind a barrier.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "threads/pool.hpp"

int main() {
  for (int size = 1; size <= 4; size++) {
    aleator::Pool pool(size);
    for (int round = 0; round < 400; round++) {
      const int bad = round % size, where = round / size % 3;
      bool thrown = false;
      try {
        pool.run([&](int thread) {
          for (int part = 0; part < 3; part++) {
            if (thread == bad && part == where) throw std::runtime_error("part");
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
      const bool ordered = std::count(seen.begin(), seen.end(), round) == size;
      if (!thrown || units != 1000 || second != 77 || !ordered) {
        std::printf("size %d round %d: thrown %d, units %d and %d, ordered %d\n", size, round,
                    thrown, units.load(), second.load(), ordered);
        return 1;
      }
    }
  }
}
