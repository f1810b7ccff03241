#include <nanobind/stl/array.h>

#include "bind.hpp"
#include "rng/mt19937.hpp"
#include "rng/philox.hpp"

namespace aleator {

ALEATOR_BIND(rng) {
  m.def("philox4x32", &philox4x32, "counter"_a, "key"_a,
        "Philox4x32-10: four 32-bit words from a counter of four and a 64-bit key.");
  nb::class_<Mt19937>(m, "Mt19937",
                      "MT19937 with a 32-bit seed and the uniforms that llama.cpp draws from it.")
      .def(nb::init<uint32_t>(), "seed"_a)
      .def("reseed", &Mt19937::reseed, "seed"_a)
      .def("word", &Mt19937::word, "The next 32-bit word.")
      .def("uniform_double", &Mt19937::uniform_double, "Two words, the low half first; in [0, 1).")
      .def("uniform_float", &Mt19937::uniform_float, "One word; in [0, 1).");
}

}  // namespace aleator
