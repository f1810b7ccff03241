// Python's side of layers with a gated delta net.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "bind.hpp"
#include "layers/delta_net_memory.hpp"

ALEATOR_BIND(delta_net) {
  using namespace aleator;
  nb::class_<DeltaNetMemory>(m, "DeltaNet", "A layer with a gated delta net.")
      .def(nb::init<const StoredMatrix&, const StoredMatrix&, const StoredMatrix&,
                    const StoredMatrix&, const StoredMatrix&, Floats, Matrix, Floats, Floats,
                    Floats, Floats, int64_t, bool, float, StateRows, StateRows>(),
           nb::arg("qkv"), nb::arg("gate"), nb::arg("beta"), nb::arg("decay"), nb::arg("output"),
           nb::arg("norm"), nb::arg("conv"), nb::arg("conv_bias"), nb::arg("a"),
           nb::arg("time_bias"), nb::arg("head_norm"), nb::arg("key_heads"), nb::arg("tiled"),
           nb::arg("eps"), nb::arg("conv_rows").noconvert(), nb::arg("state_rows").noconvert(),
           "conv [width, channels], the channels being queries, keys and values; a and time_bias "
           "[heads]; head_norm [dim_v]. tiled: head h of values goes with head h % key_heads of "
           "keys, else neighbours share one; eps is added to a key's sum of squares. Rows of the "
           "cache: float32 [rows, channels, width - 1] and [rows, heads * dim_v, dim]. "
           "ValueError, naming the tensor, when shapes disagree.");
}
