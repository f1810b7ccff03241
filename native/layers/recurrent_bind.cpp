// Python's side of layers with a convolution that keep a state.
#include "bind.hpp"
#include "layers/recurrent_memory.hpp"

ALEATOR_BIND(recurrent) {
  using namespace aleator;
  nb::class_<SSMMemory>(m, "StateSpace", "A layer with a selective state space.")
      .def(
          nb::init<const StoredMatrix&, const StoredMatrix&, const StoredMatrix&,
                   const StoredMatrix&, Floats, Matrix, Floats, Matrix, Floats, StateRows,
                   StateRows, std::vector<Floats>, std::optional<float>>(),
          "projection"_a, "select"_a, "time_step"_a, "output"_a, "norm"_a, "conv"_a, "conv_bias"_a,
          "a"_a, "d"_a, "conv_rows"_a.noconvert(), "state_rows"_a.noconvert(), "state_norms"_a,
          "norm_eps"_a.none(),
          "conv [width, channels]; a [channels, state]; rows of the cache: float32 [rows, "
          "channels, width - 1] and [rows, channels, state]. state_norms: weights of the RMS norms "
          "of time step, B and C, whose eps is norm_eps or that of the decoder; without weights "
          "they are normalised where there is a norm_eps. ValueError, naming the tensor, when "
          "shapes disagree.");
  nb::class_<HeadMemory>(m, "HeadSpace",
                         "A layer with a state space whose heads have one decay each.")
      .def(nb::init<const StoredMatrix&, const StoredMatrix&, std::optional<Floats>, Matrix, Floats,
                    Floats, Floats, Floats, int64_t, float, std::optional<Floats>, int64_t,
                    StateRows, StateRows>(),
           "projection"_a, "output"_a, "norm"_a.none(), "conv"_a, "conv_bias"_a, "time_bias"_a,
           "a"_a, "d"_a, "groups"_a, "least_step"_a, "gated_norm"_a.none(), "norm_groups"_a,
           "conv_rows"_a.noconvert(), "state_rows"_a.noconvert(),
           "projection: gate, channels of the convolution (values, then B and C of every group) "
           "and time steps; norm: None beside attention; conv [width, channels]; time_bias, a and "
           "d [heads]; least_step: no time step is shorter; gated_norm [inner]: of what the scan "
           "gives, in norm_groups parts; rows of the cache: float32 [rows, channels, width - 1] "
           "and [rows, inner, state]. ValueError, naming the tensor, when shapes disagree.");
  nb::class_<ShortMemory>(m, "ShortConvolution",
                          "A layer that keeps a short convolution's inputs alone.")
      .def(nb::init<const StoredMatrix&, const StoredMatrix&, Floats, Matrix, Floats, StateRows>(),
           "projection"_a, "output"_a, "norm"_a, "conv"_a, "conv_bias"_a, "conv_rows"_a.noconvert(),
           "projection: B, C and x, each [channels]; the layer gives output (C * conv(B * x)). "
           "conv [width, channels]; rows of the cache: float32 [rows, channels, width - 1]. "
           "ValueError, naming the tensor, when shapes disagree.");
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
