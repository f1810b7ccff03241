// Python's side of what decoders are made of, each by itself.
#include "bind.hpp"
#include "layers/checked_inputs.hpp"
#include "layers/given.hpp"
#include "layers/grids.hpp"
#include "layers/input_squares.hpp"
#include "layers/rows.hpp"

namespace aleator {

static void attend(Pool& pool, const CacheMemory& keys, const CacheMemory& values, float scale,
                   Array<const float, 3> q, Numbers seen, Indices list_start, Numbers seen_list,
                   Indices seen_count, std::optional<Numbers> seen_deltas,
                   std::optional<Indices> seen_first, std::optional<Indices> seen_sinks,
                   Array<const double, 1> frequencies, bool interleaved, bool raw,
                   Array<float, 3> out, float softcap, std::optional<Floats> slopes,
                   std::optional<Numbers> seen_positions, std::optional<Numbers> positions,
                   std::optional<Floats> sinks) {
  const int64_t tokens = int64_t(q.shape(0)), heads = int64_t(q.shape(1));
  require(tokens > 0 && keys.side.heads == values.side.heads && heads % keys.side.heads == 0 &&
              keys.side.n_cells == values.side.n_cells && int64_t(q.shape(2)) == keys.side.dim &&
              !keys.side.by_channel,
          "q must be [tokens, heads, dim] for these keys and values");
  require(int64_t(out.shape(0)) == tokens && int64_t(out.shape(1)) == heads &&
              int64_t(out.shape(2)) == values.side.dim,
          "out must be [tokens, heads, dim of the values]");
  require(2 * int64_t(frequencies.size()) <= keys.side.dim,
          "more rotated channels than a head has");
  const Pooled pooled{std::nullopt, seen,        list_start, seen_list,
                      seen_count,   seen_deltas, seen_first, seen_sinks};
  Seen checked_ = checked(pooled, tokens, keys.side.n_cells);
  require(
      bool(slopes) == bool(seen_positions) && bool(slopes) == bool(positions) &&
          (!slopes || (int64_t(slopes->size()) == heads && seen_positions->size() == seen.size() &&
                       int64_t(positions->size()) == tokens)),
      "slopes need a position of every listed cell and token");
  const AttentionShape shape{keys.side, values.side,     heads, scale,
                             softcap,   pointer(slopes), true,  pointer(sinks)};
  require(!sinks || int64_t(sinks->size()) == heads, "sinks must have a score for each head");
  if (slopes)
    checked_.seen_positions = seen_positions->data(), checked_.positions = positions->data();
  const Rotation rotation{frequencies.data(), int64_t(frequencies.size()), 1, interleaved};
  nb::gil_scoped_release nogil;
  AttentionStep step;
  step.prepare(checked_, tokens, rotation, raw, pool.size(), keys.side.heads, shape.group());
  step.reserve(shape);
  pool.run([&](int thread) { step.run(thread, pool, shape, q.data(), out.data()); });
}

ALEATOR_BIND(attention) {
  nb::class_<CacheMemory>(m, "CacheMemory", "One layer's keys or values, its memory borrowed.")
      .def(nb::init<CacheBytes, const std::string&, int64_t, int64_t, int64_t, bool, int64_t>(),
           "data"_a.noconvert(), "type"_a, "n_cells"_a, "heads"_a, "dim"_a, "by_channel"_a = false,
           "rotation"_a = 0,
           "data: uint8, [n_cells, heads, dim], or by_channel [heads, dim, n_cells], of type "
           "'F32', 'F16', 'BF16', or one in blocks of 32 (dim then a multiple of 32, not "
           "by_channel); rotation: heads are stored rotated by a Hadamard matrix in blocks of so "
           "many. ValueError when sizes disagree.");
  m.def("attend", &attend, "pool"_a, "keys"_a, "values"_a, "scale"_a, "q"_a, "seen"_a,
        "list_start"_a, "seen_list"_a, "seen_count"_a, "seen_deltas"_a.none(),
        "seen_first"_a.none(), "seen_sinks"_a.none(), "frequencies"_a, "interleaved"_a, "raw"_a,
        "out"_a.noconvert(), "softcap"_a = 0.0f, "slopes"_a.none() = nb::none(),
        "seen_positions"_a.none() = nb::none(), "positions"_a.none() = nb::none(),
        "sinks"_a.none() = nb::none(),
        "Attention of queries q float32 [T, heads, dim] into out float32 [T, heads, dim of the "
        "values], as DecoderStep does it; for the lists see DecoderStep.run. raw: keys are stored "
        "unrotated, and rotated by seen_deltas, their positions then. softcap: scores s become "
        "softcap * tanh(s / softcap); slopes float32 [heads]: the slope times seen_positions of "
        "the listed cell less positions[t] is added to a score; sinks float32 [heads]: scores that "
        "no value goes with.");
}

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

static void route_rows(Array<float, 2> logits, Array<int32_t, 2> chosen, Array<float, 2> weights,
                       const std::string& scores, bool normalised, float scale, int64_t n_groups,
                       int64_t n_groups_used, int64_t n_group_best, std::optional<Floats> bias,
                       std::optional<Floats> scales) {
  Routing r{.n_experts = int64_t(logits.shape(1)),
            .n_used = int64_t(chosen.shape(1)),
            .n_groups = n_groups,
            .n_groups_used = n_groups_used,
            .n_group_best = n_group_best,
            .scores = scores_named(scores),
            .normalised = normalised,
            .scale = scale,
            .bias = pointer(bias),
            .scales = pointer(scales)};
  require(!bias || int64_t(bias->size()) == r.n_experts, "bias must have a number for each expert");
  require(!scales || int64_t(scales->size()) == r.n_experts,
          "scales must have a number for each expert");
  require_choice(r, "");
  const int64_t tokens = int64_t(logits.shape(0));
  require(int64_t(chosen.shape(0)) == tokens && int64_t(weights.shape(0)) == tokens &&
              int64_t(weights.shape(1)) == r.n_used,
          "chosen and weights must be [tokens, n_used]");
  std::vector<float> keys(r.n_experts + r.n_groups);
  for (int64_t t = 0; t < tokens; t++)
    route_(r, logits.data() + t * r.n_experts, keys.data(), chosen.data() + t * r.n_used,
           weights.data() + t * r.n_used);
}

ALEATOR_BIND(routing) {
  m.def("route", &route_rows, "logits"_a.noconvert(), "chosen"_a.noconvert(),
        "weights"_a.noconvert(), "scores"_a, "normalised"_a, "scale"_a, "n_groups"_a,
        "n_groups_used"_a, "n_group_best"_a, "bias"_a.none(), "scales"_a.none() = nb::none(),
        "Which experts tokens go through: logits float32 [T, experts], overwritten; writes chosen "
        "int32 and weights float32 [T, n_used], best first.");
}

using Codebook = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<2>, nb::c_contig, nb::ro>;

static Codebook codebook(const std::string& name) {
  const auto of = [](const auto& grid) {
    return Codebook(grid[0].data(), {grid.size(), grid[0].size()}, nb::handle());
  };
  if (name == "IQ2_XXS") return of(iq2_xxs_grid);
  if (name == "IQ2_XS") return of(iq2_xs_grid);
  if (name == "IQ2_S") return of(iq2_s_grid);
  if (name == "IQ3_XXS") return of(iq3_xxs_grid);
  if (name == "IQ3_S") return of(iq3_s_grid);
  if (name == "IQ1_S" || name == "IQ1_M") return of(iq1_grid);
  refuse("no codebook of ", name);
}

ALEATOR_BIND(grids) {
  m.def("codebook", &codebook, "type"_a, nb::rv_policy::reference,
        "A codebook of ggml's IQ types, uint8 [entries, elements]: magnitudes; of IQ1_S and IQ1_M "
        "8 * v + 9 of the values v -1, 0 and 1.");
}

// Keeps the memory of the matrices and of their sums alive.
struct WatchedMatrices {
  InputSquares squares;
  std::vector<Bytes> data;
  std::vector<Array<double, 2>> sums;
  std::vector<Array<int64_t>> rows;

  void watch(Bytes d, Array<double, 2> s, Array<int64_t> r) {
    const size_t n = s.shape(0);
    require(n > 0 && r.size() == n && d.size() > 0 && d.size() % n == 0,
            "data must be n matrices of as many bytes, sums [n, in] and rows [n]");
    for (size_t i = 0; i < n; i++)
      squares.watch(d.data() + i * (d.size() / n),
                    {int64_t(s.shape(1)), s.data() + i * s.shape(1), r.data() + i});
    data.push_back(d), sums.push_back(s), rows.push_back(r);
  }
  void start() {
    InputSquares* none = nullptr;
    require(InputSquares::active.compare_exchange_strong(none, &squares),
            "another collection is running: wait for its end");
  }
  void stop() {
    InputSquares* own = &squares;
    InputSquares::active.compare_exchange_strong(own, nullptr);
  }
  ~WatchedMatrices() { stop(); }
};

ALEATOR_BIND(input_squares) {
  nb::class_<WatchedMatrices>(m, "InputSquares",
                              "Sums of squares of what matrices are multiplied with.")
      .def(nb::init<>())
      .def("watch", &WatchedMatrices::watch, "data"_a, "sums"_a.noconvert(), "rows"_a.noconvert(),
           "data: uint8, the bytes of n stacked matrices where a decoder reads them.  From start() "
           "to stop() the squares of their inputs are added to sums float64 [n, in], and the "
           "number of inputs to rows int64 [n].  ValueError when sizes disagree.")
      .def("start", &WatchedMatrices::start,
           "ValueError while another one collects; no step may be running.")
      .def("stop", &WatchedMatrices::stop, "No step may be running.");
}

}  // namespace aleator
