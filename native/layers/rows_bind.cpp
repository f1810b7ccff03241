// Python's side of what decoders do to single rows.
#include "bind.hpp"
#include "layers/angles.hpp"
#include "layers/gates.hpp"
#include "layers/given.hpp"
#include "layers/rows.hpp"

namespace aleator {

static void angles_of(Array<const double, 1> frequencies, Array<const int32_t, 1> positions,
                      double magnitude, Array<float, 3> out) {
  const int64_t n = int64_t(positions.size()), pairs = int64_t(frequencies.size());
  require(int64_t(out.shape(0)) == n && int64_t(out.shape(1)) == pairs && out.shape(2) == 2,
          "out must be [positions, frequencies, 2]");
  rotary_angles({frequencies.data(), pairs}, positions.data(), n, 1, magnitude, out.data());
}

static void rotate_heads(Array<float, 3> x, Array<const float, 3> angles, bool interleaved) {
  const int64_t pairs = int64_t(angles.shape(1)), dim = int64_t(x.shape(2));
  require(angles.shape(0) == x.shape(0) && angles.shape(2) == 2 && 2 * pairs <= dim,
          "angles must be [n, pairs, 2], pairs at most half of x's channels");
  for (int64_t i = 0; i < int64_t(x.shape(0)); i++)
    for (int64_t h = 0; h < int64_t(x.shape(1)); h++)
      rotate_(x.data() + (i * int64_t(x.shape(1)) + h) * dim, angles.data() + i * pairs * 2, pairs,
              interleaved);
}

static void normalise(Array<float, 2> x, Array<const float, 1> weight, float eps) {
  const int64_t n = int64_t(x.shape(1));
  require(int64_t(weight.size()) == n, "weight must be as long as a row of x");
  for (int64_t i = 0; i < int64_t(x.shape(0)); i++)
    rms_norm_(x.data() + i * n, weight.data(), n, eps, x.data() + i * n);
}

static void normalise_layer(Array<float, 2> x, Array<const float, 1> weight, float eps) {
  const int64_t n = int64_t(x.shape(1));
  require(int64_t(weight.size()) == 2 * n, "weight must be two rows of x: weights, then biases");
  for (int64_t i = 0; i < int64_t(x.shape(0)); i++)
    layer_norm_(x.data() + i * n, weight.data(), n, eps, x.data() + i * n);
}

static void activate(const std::string& name, Array<float, 1> gate, Array<const float, 1> up) {
  require(gate.size() == up.size(), "gate and up differ in length");
  apply_gate(gate_named(name, "name"), gate.data(), up.data(), int64_t(gate.size()));
}

static void turn_blocks(Array<float, 2> x, int64_t block) {
  const int64_t n = int64_t(x.shape(1));
  require(block > 0 && (block & (block - 1)) == 0 && n % block == 0,
          "block must be a power of 2 that divides a row, not ", block);
  for (int64_t i = 0; i < int64_t(x.shape(0)); i++) hadamard_(x.data() + i * n, n, block);
}

ALEATOR_BIND(rows) {
  m.def("rotary_angles", &angles_of, "frequencies"_a, "positions"_a, "magnitude"_a,
        "out"_a.noconvert(),
        "Writes magnitude times cosine and sine of position * frequency: frequencies float64 "
        "[pairs], positions int32 [n], out float32 [n, pairs, 2].");
  m.def("rotate_heads", &rotate_heads, "x"_a.noconvert(), "angles"_a, "interleaved"_a,
        "Rotates float32 [n, heads, dim] in place by angles float32 [n, pairs, 2]: channels (2i, "
        "2i + 1) if interleaved, else (i, i + pairs).");
  m.def("rms_norm", &normalise, "x"_a.noconvert(), "weight"_a, "eps"_a,
        "Divides every row of float32 [n, width] by its root mean square, in place, times weight.");
  m.def("layer_norm", &normalise_layer, "x"_a.noconvert(), "weight"_a, "eps"_a,
        "Every row of float32 [n, width] less its mean, over its standard deviation, in place, "
        "times weight[:width] plus weight[width:].");
  m.def("activate", &activate, "name"_a, "gate"_a.noconvert(), "up"_a,
        "gate = f(gate) * up in place, float32 [n]; f is 'silu', 'silu_clamped', 'gelu', "
        "'gelu_exact', 'gelu_rounded' or 'relu_squared'.");
  m.def(
      "soften_logits",
      [](Array<float, 2> x, float cap) { soften_(x.data(), int64_t(x.size()), cap); },
      "x"_a.noconvert(), "cap"_a, "x = cap * tanh(x / cap) in place, float32.");
  m.def("hadamard", &turn_blocks, "x"_a.noconvert(), "block"_a,
        "Turns every block of float32 [n, width] in place by a Hadamard matrix that is its own "
        "inverse.");
}

}  // namespace aleator
