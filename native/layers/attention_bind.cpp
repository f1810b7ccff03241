// Python's side of attention by itself.
#include "layers/cache_memory.hpp"

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

}  // namespace aleator
