// Python's side of layers with a gated delta net.
#include "bind.hpp"
#include "layers/delta_net_memory.hpp"

ALEATOR_BIND(delta_net) {
  using namespace aleator;
  nb::class_<DeltaNetMemory>(m, "DeltaNet", "A layer with a gated delta net.")
      .def(nb::init<const StoredMatrix&, const StoredMatrix&, const StoredMatrix&,
                    const StoredMatrix&, const StoredMatrix&, Floats, Matrix, Floats, Floats,
                    Floats, Floats, int64_t, bool, float, StateRows, StateRows>(),
           "qkv"_a, "gate"_a, "beta"_a, "decay"_a, "output"_a, "norm"_a, "conv"_a, "conv_bias"_a,
           "a"_a, "time_bias"_a, "head_norm"_a, "key_heads"_a, "tiled"_a, "eps"_a,
           "conv_rows"_a.noconvert(), "state_rows"_a.noconvert(),
           "conv [width, channels], the channels being queries, keys and values; a and time_bias "
           "[heads]; head_norm [dim_v]. tiled: head h of values goes with head h % key_heads of "
           "keys, else neighbours share one; eps is added to a key's sum of squares. Rows of the "
           "cache: float32 [rows, channels, width - 1] and [rows, heads * dim_v, dim]. ValueError, "
           "naming the tensor, when shapes disagree.");
}
