// Mistakes on purpose, in builds with sanitizers only: tools/sanitize.py makes each of them and
// expects the process to be ended.
#include <thread>

#include "bind.hpp"

namespace aleator {

ALEATOR_BIND(sanitize_probe) {
  m.def(
      "write_past_end",
      [](size_t n) {
        std::vector<float> row(n);
        volatile float* z = row.data();
        z[n] = 1;
      },
      "n"_a, "Writes behind an array of n floats on the heap.");
  m.def("add_one", [](int32_t x) { return x + 1; }, "x"_a, "Overflows at 2^31 - 1.");
  m.def(
      "race_to",
      [](int n) {
        int counted = 0;
        const auto count = [&] {
          for (int i = 0; i < n; i++) ++*const_cast<volatile int*>(&counted);
        };
        std::thread other(count);
        count();
        other.join();
        return counted;
      },
      "n"_a, "Two threads count to n in one number, without a lock.");
}

}  // namespace aleator
