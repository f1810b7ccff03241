// Gives freed memory back to the system, after work that needed much of it for a moment.
#include <cstdlib>  // says whether this is glibc

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "bind.hpp"

ALEATOR_BIND(free_memory) {
  m.def(
      "give_back_memory",
      [] {
#if defined(__GLIBC__)
        malloc_trim(0);
#endif
      },
      "Give memory that the C library has free back to the system, where it can.");
}
