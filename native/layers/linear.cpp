#include "layers/linear.hpp"

#include "bind.hpp"
#include "errors.hpp"
#include "layers/input_squares.hpp"
#include "layers/stored_matrix.hpp"

namespace aleator {

Stored stored_type(const std::string& name) {
  std::string names;
  for (int i = 0; i < int(std::size(block_shapes)); i++) {
    if (name == block_shapes[i].name) return Stored(i);
    names += std::string(i ? ", " : "") + block_shapes[i].name;
  }
  refuse("type ", name, " is not one of ", names);
}

int64_t stored_row_bytes(Stored type, int64_t n) {
  if (n < 1 || n > int64_t(1) << 40) refuse("a row of ", n, " elements");
  const BlockShape shape = block_shape(type);
  if (n % shape.elements)
    refuse("a ", shape.name, " row has a multiple of ", shape.elements, " elements, not ", n);
  return stored_bytes(type, n);
}

StoredMatrix::StoredMatrix(Bytes data, const std::string& type, int64_t out, int64_t in,
                           std::optional<Floats> bias, std::optional<Order> order)
    : data_(std::move(data)), bias_(std::move(bias)), order_(std::move(order)) {
  weights = {data_.data(), stored_type(type), out, in, 0, pointer(bias_), pointer(order_)};
  weights.row_bytes = stored_row_bytes(weights.type, in);
  if (out < 1 || out > (int64_t(1) << 62) / weights.row_bytes ||
      int64_t(data_.size()) != out * weights.row_bytes)
    refuse(type, " [", out, ", ", in, "] does not take ", data_.size(), " bytes");
  if (bias_ && int64_t(bias_->size()) != out)
    refuse("a bias of ", bias_->size(), " for ", out, " rows");
  if (!order_) return;
  if (!in_blocks(weights.type))
    refuse("an order of the columns of ", type, ", which has no blocks");
  if (int64_t(order_->size()) != in) refuse("an order of ", order_->size(), " of ", in, " columns");
  for (int64_t i = 0; i < in; i++)
    if ((*order_)(i) < 0 || (*order_)(i) >= in) refuse("column ", (*order_)(i), " of ", in);
}

void multiply(Pool& pool, const Weights& w, const float* x, int64_t tokens, float* y) {
  Input in{.x = x, .stride = w.in, .tokens = tokens};
  const Forms forms = forms_of({&w}).of(tokens);
  const Shares shares = shares_of(w, tokens);
  FormedRows formed;
  formed.resize(tokens, w.in, forms);
  formed.give(in);
  pool.run_adapting([&](int thread) {
    if (forms.made()) pool.each(thread, tokens, [&](int64_t t) { formed.round(t, x + t * w.in); });
    const LaneTiles tiles{tokens};
    if (forms.lanes)
      pool.each(thread, tiles.n, [&](int64_t tile) { formed.take_apart(tiles, tile, x, w.in); });
    pool.split_pieces(thread, shares.rows_of_part, shares.rows, [&](int64_t begin, int64_t end) {
      product_rows(w, begin, end, in, y, w.out, shares.parts);
    });
  });
}

static void linear(Pool& pool, const StoredMatrix& matrix, Array<const float, 2> x,
                   Array<float, 2> y) {
  const Weights& w = matrix.weights;
  const int64_t tokens = int64_t(x.shape(0));
  if (int64_t(x.shape(1)) != w.in || int64_t(y.shape(1)) != w.out || int64_t(y.shape(0)) != tokens)
    refuse("x must be [tokens, in] and y [tokens, out]");
  nb::gil_scoped_release nogil;
  multiply(pool, w, x.data(), tokens, y.data());
}

static void read_rows(Pool& pool, const StoredMatrix& matrix, Array<const int64_t> rows,
                      Array<float, 2> y) {
  const Weights& w = matrix.weights;
  const int64_t n = int64_t(rows.size()), *index = rows.data();
  if (int64_t(y.shape(0)) != n || int64_t(y.shape(1)) != w.in) refuse("y must be [rows, in]");
  for (int64_t i = 0; i < n; i++)
    if (index[i] < 0 || index[i] >= w.out) refuse("row ", index[i], " of a matrix of ", w.out);
  nb::gil_scoped_release nogil;
  pool.run([&](int thread) {
    pool.split_pieces(thread, n, 16, [&](int64_t i, int64_t end) {
      for (; i < end; i++) read_row_(w, index[i], y.data() + i * w.in);
    });
  });
}

ALEATOR_BIND(linear) {
  nb::class_<StoredMatrix>(m, "StoredMatrix",
                           "A weight matrix [out, in] in its stored type, its memory borrowed.")
      .def(nb::init<Bytes, const std::string&, int64_t, int64_t, std::optional<Floats>,
                    std::optional<Order>>(),
           "data"_a, "type"_a, "n_out"_a, "n_in"_a, "bias"_a.none() = nb::none(),
           "order"_a.none() = nb::none(),
           "data: uint8, all of the matrix; type: a name of ggml's, such as 'F32' or 'Q4_K'; bias: "
           "float32 [out]; order: int32 [in], the element of x that each column of a matrix in "
           "blocks meets in products. ValueError when sizes disagree.")
      .def_prop_ro("shape", [](const StoredMatrix& s) {
        return nb::make_tuple(s.weights.out, s.weights.in);
      });
  m.def("linear", &linear, "pool"_a, "matrix"_a, "x"_a, "y"_a.noconvert(),
        "y[tokens, out] = x[tokens, in] W^T + bias, float32. Equal bits for any number of threads "
        "and tokens, and every instruction set.");
  m.def("read_rows", &read_rows, "pool"_a, "matrix"_a, "rows"_a, "y"_a.noconvert(),
        "y[i] = row rows[i] of the matrix as float32; rows int64 [n], y [n, in]. ValueError for a "
        "row out of range.");
}

}  // namespace aleator
