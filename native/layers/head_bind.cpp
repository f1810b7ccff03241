// Python's side of layers with one decay for each head, and of those with a short convolution.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include "bind.hpp"
#include "layers/head_memory.hpp"

ALEATOR_BIND(head_space) {
  using namespace aleator;
  nb::class_<HeadMemory>(m, "HeadSpace",
                         "A layer with a state space whose heads have one decay each.")
      .def(nb::init<const StoredMatrix&, const StoredMatrix&, std::optional<Floats>, Matrix, Floats,
                    Floats, Floats, Floats, int64_t, float, std::optional<Floats>, int64_t,
                    StateRows, StateRows>(),
           nb::arg("projection"), nb::arg("output"), nb::arg("norm").none(), nb::arg("conv"),
           nb::arg("conv_bias"), nb::arg("time_bias"), nb::arg("a"), nb::arg("d"),
           nb::arg("groups"), nb::arg("least_step"), nb::arg("gated_norm").none(),
           nb::arg("norm_groups"), nb::arg("conv_rows").noconvert(),
           nb::arg("state_rows").noconvert(),
           "projection: gate, channels of the convolution (values, then B and C of every group) "
           "and time steps; norm: None beside attention; conv [width, channels]; time_bias, a and "
           "d [heads]; least_step: no time step is shorter; gated_norm [inner]: of what the scan "
           "gives, in norm_groups parts; rows of the cache: float32 [rows, channels, width - 1] "
           "and [rows, inner, state]. ValueError, naming the tensor, when shapes disagree.");
  nb::class_<ShortMemory>(m, "ShortConvolution",
                          "A layer that keeps a short convolution's inputs alone.")
      .def(nb::init<const StoredMatrix&, const StoredMatrix&, Floats, Matrix, Floats, StateRows>(),
           nb::arg("projection"), nb::arg("output"), nb::arg("norm"), nb::arg("conv"),
           nb::arg("conv_bias"), nb::arg("conv_rows").noconvert(),
           "projection: B, C and x, each [channels]; the layer gives output (C * conv(B * x)). "
           "conv [width, channels]; rows of the cache: float32 [rows, channels, width - 1]. "
           "ValueError, naming the tensor, when shapes disagree.");
}
