// Long computations that a signal ends, as Ctrl-C does.
#pragma once

#include <nanobind/nanobind.h>

#include "threads/pool.hpp"

namespace aleator {

struct Interrupted {};  // Python's error is set

// Has Python handle signals, without which it holds the interpreter lock.
inline void check_signals() {
  nanobind::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw Interrupted{};
}

// Calls f(watch) without the interpreter lock; what a signal's handler raises is raised here.
template <class F>
void interruptibly(F&& f) {
  bool interrupted = false;
  {
    nanobind::gil_scoped_release release;
    Watch watch(check_signals);
    try {
      f(watch);
    } catch (const Interrupted&) {
      interrupted = true;
    }
  }
  if (interrupted) throw nanobind::python_error();
}

}  // namespace aleator
