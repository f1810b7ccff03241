// Python's side of DecoderStep: every size and index is checked here, and the memory kept alive.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <list>
#include <optional>
#include <stdexcept>
#include <string>

#include "bind.hpp"
#include "layers/decoder_step.hpp"
#include "layers/stored_matrix.hpp"

namespace aleator {

template <class T, int n>
using Array = nb::ndarray<T, nb::ndim<n>, nb::c_contig, nb::device::cpu>;
using CacheBytes = Array<uint8_t, 1>;

static void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

// One layer's keys or values as bytes: see CacheSide.
struct CacheMemory {
  CacheBytes data;
  CacheSide side;
  CacheMemory(CacheBytes bytes, const std::string& type, int64_t cells, int64_t heads, int64_t dim,
              bool by_channel, int64_t rotation)
      : data(std::move(bytes)) {
    side = {data.data(), stored_type(type), heads, dim, cells, by_channel, rotation};
    constexpr int64_t limit = int64_t(1) << 20;
    require(cells >= 1 && cells < int64_t(1) << 31 && heads >= 1 && heads <= limit && dim >= 1 &&
                dim <= limit,
            "sizes out of range");
    require(stored_row_bytes(side.type, dim) &&
                int64_t(data.size()) / side.row_bytes() / heads == cells &&
                int64_t(data.size()) % (side.row_bytes() * heads) == 0,
            "a cache of " + std::to_string(data.size()) + " bytes is not [" +
                std::to_string(cells) + ", " + std::to_string(heads) + ", " + std::to_string(dim) +
                "] of " + type);
    require(!by_channel || !in_blocks(side.type), "a cache of " + type + " by channels");
    require(rotation >= 0 && (rotation & (rotation - 1)) == 0 && (!rotation || dim % rotation == 0),
            "rotation in blocks of " + std::to_string(rotation));
  }
};

class BoundDecoderStep {
 public:
  BoundDecoderStep(const StoredMatrix& embedding, const StoredMatrix& output, Floats output_norm,
                   float eps, float attention_scale, Array<const double, 1> frequencies,
                   double magnitude, bool interleaved)
      : embedding_(embedding),
        output_(output),
        output_norm_(std::move(output_norm)),
        frequencies_(std::move(frequencies)),
        shape_{embedding_.weights,
               output_.weights,
               output_norm_.data(),
               frequencies_.data(),
               int64_t(frequencies_.size()),
               magnitude,
               interleaved,
               eps,
               attention_scale},
        step_(shape_) {
    require(embedding_.weights.in == output_.weights.in, "token_embd and output differ in width");
    norm(output_norm_, shape_.n_embd(), "output_norm");
  }

  void add_layer(const StoredMatrix& q, const StoredMatrix& k, const StoredMatrix& v,
                 const StoredMatrix& o, const StoredMatrix& gate, const StoredMatrix& up,
                 const StoredMatrix& down, Floats attention_norm, Floats ffn_norm,
                 std::optional<Floats> q_norm, std::optional<Floats> k_norm,
                 const CacheMemory& keys, const CacheMemory& values) {
    const std::string at = "blk." + std::to_string(n_layers_) + ".";
    const int64_t e = shape_.n_embd(), dim = keys.side.dim, dim_v = values.side.dim;
    const int64_t groups = keys.side.heads, heads = q.weights.out / dim;
    const auto matrix = [&](const StoredMatrix& m, int64_t out, int64_t in, const char* name) {
      require(m.weights.out == out && m.weights.in == in,
              at + name + ".weight is [" + std::to_string(m.weights.out) + ", " +
                  std::to_string(m.weights.in) + "], not [" + std::to_string(out) + ", " +
                  std::to_string(in) + "]");
    };
    require(heads >= groups && heads % groups == 0,
            at + "attn_q: " + std::to_string(heads) + " query heads for " + std::to_string(groups) +
                " key-value heads");
    require(values.side.heads == groups && values.side.n_cells == keys.side.n_cells,
            at + "keys and values differ in heads or cells");
    require(n_layers_ == 0 || keys.side.n_cells == n_cells_,
            at + "number of cells differs from layer 0");
    require(!keys.side.by_channel, at + "keys by channels");
    require(shape_.rotated_pairs * 2 <= dim, at + "more rotated channels than a head has");
    matrix(q, heads * dim, e, "attn_q");
    matrix(k, groups * dim, e, "attn_k");
    matrix(v, groups * dim_v, e, "attn_v");
    matrix(o, e, heads * dim_v, "attn_output");
    matrix(gate, gate.weights.out, e, "ffn_gate");
    matrix(up, gate.weights.out, e, "ffn_up");
    matrix(down, e, gate.weights.out, "ffn_down");
    norm(attention_norm, e, at + "attn_norm");
    norm(ffn_norm, e, at + "ffn_norm");
    if (q_norm) norm(*q_norm, dim, at + "attn_q_norm");
    if (k_norm) norm(*k_norm, dim, at + "attn_k_norm");

    n_layers_++;
    n_cells_ = keys.side.n_cells;
    kept_.push_back({{q, k, v, o, gate, up, down},
                     attention_norm,
                     ffn_norm,
                     q_norm,
                     k_norm,
                     keys.data,
                     values.data});
    step_.add_layer({q.weights, k.weights, v.weights, o.weights, gate.weights, up.weights,
                     down.weights, attention_norm.data(), ffn_norm.data(),
                     q_norm ? q_norm->data() : nullptr, k_norm ? k_norm->data() : nullptr,
                     keys.side, values.side});
  }

  void run(Pool& pool, std::optional<Array<const int64_t, 1>> ids,
           std::optional<Array<const float, 2>> embeddings, Array<const int32_t, 1> positions,
           Array<const int64_t, 1> cells, Array<const int32_t, 1> seen,
           Array<const int64_t, 1> list_start, Array<const int32_t, 1> seen_list,
           Array<const int64_t, 1> seen_count, std::optional<Array<const int32_t, 1>> seen_deltas,
           Array<const int64_t, 1> out_rows, Array<float, 2> logits) {
    MicroBatch b;
    b.tokens = int64_t(positions.size());
    require(bool(ids) != bool(embeddings), "either token ids or embeddings");
    require(n_layers_ > 0 && b.tokens > 0, "no layers or no tokens");
    require(ids ? int64_t(ids->size()) == b.tokens
                : int64_t(embeddings->shape(0)) == b.tokens &&
                      int64_t(embeddings->shape(1)) == shape_.n_embd(),
            "tokens or embeddings do not match the positions");
    b.n_lists = int64_t(list_start.size()) - 1;
    b.n_out = int64_t(out_rows.size());
    require(int64_t(cells.size()) == b.tokens && int64_t(seen_list.size()) == b.tokens &&
                int64_t(seen_count.size()) == b.tokens,
            "cells, seen_list or seen_count do not match the tokens");
    require(b.n_lists >= 0 && list_start(0) == 0 && list_start(b.n_lists) == int64_t(seen.size()) &&
                (!seen_deltas || seen_deltas->size() == seen.size()),
            "list_start or seen_deltas do not match seen");
    for (int64_t i = 0; i < b.n_lists; i++)
      require(list_start(i) <= list_start(i + 1), "list_start must ascend");
    int32_t worst = 0;  // as unsigned, the largest: one comparison for both ends
    for (size_t i = 0; i < seen.size(); i++)
      worst = uint32_t(seen(i)) > uint32_t(worst) ? seen(i) : worst;
    require(seen.size() == 0 || uint32_t(worst) < uint64_t(n_cells_),
            "seen cell " + std::to_string(worst));
    require(int64_t(logits.shape(0)) == b.n_out &&
                int64_t(logits.shape(1)) == output_.weights.out && b.n_out <= b.tokens,
            "logits must be [out_rows, n_vocab]");
    for (int64_t i = 0; i < b.tokens; i++) {
      require(cells(i) >= 0 && cells(i) < n_cells_, "cell " + std::to_string(cells(i)));
      const int64_t list = seen_list(i);
      require(
          list >= 0 && list < b.n_lists && seen_count(i) >= 0 &&
              seen_count(i) <= list_start(list + 1) - list_start(list),
          "token " + std::to_string(i) + " sees more than list " + std::to_string(list) + " holds");
      require(!ids || ((*ids)(i) >= 0 && (*ids)(i) < embedding_.weights.out),
              "token " + std::to_string(ids ? (*ids)(i) : 0) + " is outside the vocabulary");
    }
    for (int64_t i = 0; i < b.n_out; i++)
      require(out_rows(i) >= 0 && out_rows(i) < b.tokens, "row " + std::to_string(out_rows(i)));
    b.ids = ids ? ids->data() : nullptr;
    b.embeddings = embeddings ? embeddings->data() : nullptr;
    b.positions = positions.data();
    b.cells = cells.data();
    b.seen = seen.data();
    b.list_start = list_start.data();
    b.seen_list = seen_list.data();
    b.seen_count = seen_count.data();
    b.seen_deltas = seen_deltas ? seen_deltas->data() : nullptr;
    b.out_rows = out_rows.data();
    b.logits = logits.data();
    nb::gil_scoped_release nogil;
    step_.run(pool, b);
  }

 private:
  struct Kept {
    std::vector<StoredMatrix> matrices;
    Floats attention_norm, ffn_norm;
    std::optional<Floats> q_norm, k_norm;
    CacheBytes keys, values;
  };
  static void norm(const Floats& weight, int64_t n, const std::string& name) {
    require(int64_t(weight.size()) == n, name + ".weight has " + std::to_string(weight.size()) +
                                             " elements, not " + std::to_string(n));
  }

  StoredMatrix embedding_, output_;
  Floats output_norm_;
  Array<const double, 1> frequencies_;
  DecoderShape shape_;
  DecoderStep step_;
  std::list<Kept> kept_;
  int64_t n_layers_ = 0, n_cells_ = 0;
};

}  // namespace aleator

ALEATOR_BIND(decoder_step) {
  using namespace aleator;
  nb::class_<CacheMemory>(m, "CacheMemory", "One layer's keys or values, its memory borrowed.")
      .def(nb::init<CacheBytes, const std::string&, int64_t, int64_t, int64_t, bool, int64_t>(),
           nb::arg("data").noconvert(), nb::arg("type"), nb::arg("n_cells"), nb::arg("heads"),
           nb::arg("dim"), nb::arg("by_channel") = false, nb::arg("rotation") = 0,
           "data: uint8, [n_cells, heads, dim], or by_channel [heads, dim, n_cells], of type "
           "'F32', 'F16', 'BF16', 'Q8_0' or 'Q4_0' (dim then a multiple of 32, not by_channel); "
           "rotation: heads are stored turned by a Hadamard matrix in blocks of so many. "
           "ValueError when sizes disagree.");
  nb::class_<BoundDecoderStep>(m, "DecoderStep",
                               "A decoder of the llama, qwen2 or qwen3 kind, run for a few tokens "
                               "at a time on the processor.")
      .def(nb::init<const StoredMatrix&, const StoredMatrix&, Floats, float, float,
                    Array<const double, 1>, double, bool>(),
           nb::arg("embedding"), nb::arg("output"), nb::arg("output_norm"), nb::arg("eps"),
           nb::arg("attention_scale"), nb::arg("frequencies"), nb::arg("magnitude"),
           nb::arg("interleaved"),
           "frequencies: float64, radians per position of each rotated pair of channels.")
      .def("add_layer", &BoundDecoderStep::add_layer, nb::arg("q"), nb::arg("k"), nb::arg("v"),
           nb::arg("o"), nb::arg("gate"), nb::arg("up"), nb::arg("down"), nb::arg("attention_norm"),
           nb::arg("ffn_norm"), nb::arg("q_norm").none(), nb::arg("k_norm").none(), nb::arg("keys"),
           nb::arg("values"),
           "Appends a layer; ValueError, naming the tensor, when shapes disagree.")
      .def("run", &BoundDecoderStep::run, nb::arg("pool"), nb::arg("ids").none(),
           nb::arg("embeddings").none(), nb::arg("positions"), nb::arg("cells"), nb::arg("seen"),
           nb::arg("list_start"), nb::arg("seen_list"), nb::arg("seen_count"),
           nb::arg("seen_deltas").none(), nb::arg("out_rows"), nb::arg("logits").noconvert(),
           "T tokens: ids int64 [T] or embeddings float32 [T, n_embd]; positions int32 [T]; cells "
           "int64 [T], where keys and values go. seen int32 [N]: lists of cells, list i being "
           "seen[list_start[i]:list_start[i + 1]]; token t attends to the first seen_count[t] "
           "(int64) of list seen_list[t] (int32); none give zeros. seen_deltas int32 [N]: "
           "positions that the listed cells' stored keys are behind. out_rows int64 [R]; writes "
           "logits float32 [R, n_vocab]. ValueError, with nothing changed, for an index out of "
           "range.");
}
