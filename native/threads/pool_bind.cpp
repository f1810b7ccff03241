// Python's side of the team of threads.
#include "bind.hpp"
#include "threads/pool.hpp"

ALEATOR_BIND(pool) {
  using aleator::Pool;
  nb::class_<Pool>(m, "ThreadPool",
                   "A small team of threads for native layers; idle ones sleep. Survives a fork.")
      .def(nb::init<int>(), "threads"_a,
           "threads: 1 to 256, the calling thread included. ValueError outside.")
      .def_prop_ro("threads", &Pool::size);
}
