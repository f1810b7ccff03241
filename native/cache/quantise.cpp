#include "cache/quantise.hpp"

#include "bind.hpp"
#include "errors.hpp"
#include "layers/rows.hpp"
#include "layers/stored_matrix.hpp"
#include "threads/pool.hpp"

namespace aleator {

using CellList = Array<const int64_t>;

// Bytes [n_cells, row_bytes] of rows of `width` elements, and which of them x goes to or comes
// from.
template <class Data, class X>
static Stored checked(const std::string& name, const Data& data, const CellList& cells,
                      const X& x) {
  const Stored type = stored_type(name);
  const int64_t n_cells = int64_t(data.shape(0)), width = int64_t(x.shape(1));
  if (int64_t(data.shape(1)) != stored_row_bytes(type, width) || x.shape(0) != cells.size())
    refuse("rows of ", data.shape(1), " bytes are not ", width, " elements of ", name,
           ", or x has not one row per cell");
  for (size_t i = 0; i < cells.size(); i++)
    if (cells(i) < 0 || cells(i) >= n_cells) refuse("cell ", cells(i), " of ", n_cells);
  return type;
}

static void require_blocks(int64_t width, int64_t block) {
  if (block < 0 || (block & (block - 1)) || (block && width % block))
    refuse("rotation in blocks of ", block, " of ", width, " elements");
}

template <class F>
static void each_row(Pool& pool, int64_t n, F&& f) {
  pool.run([&](int thread) {
    pool.split_pieces(thread, n, 16, [&](int64_t i, int64_t end) {
      for (; i < end; i++) f(thread, i);
    });
  });
}

static void store_rows(Pool& pool, const std::string& name, int64_t rotation,
                       Array<const float, 2> x, Array<uint8_t, 2> data, CellList cells) {
  const Stored type = checked(name, data, cells, x);
  const int64_t width = int64_t(x.shape(1)), row_bytes = int64_t(data.shape(1));
  require_blocks(width, rotation);
  const float* from = x.data();
  const int64_t *cell = cells.data(), n = int64_t(cells.size());
  uint8_t* to = data.data();
  nb::gil_scoped_release nogil;
  std::vector<std::vector<float>> rotated(pool.size());
  each_row(pool, n, [&](int thread, int64_t i) {
    const float* row = from + i * width;
    if (rotation) {
      std::vector<float>& copy = rotated[thread];
      copy.assign(row, row + width);
      hadamard_(copy.data(), width, rotation);
      row = copy.data();
    }
    store_row_(row, width, type, to + cell[i] * row_bytes);
  });
}

static void load_rows(Pool& pool, const std::string& name, int64_t rotation,
                      Array<const uint8_t, 2> data, CellList cells, Array<float, 2> y) {
  const Stored type = checked(name, data, cells, y);
  const int64_t width = int64_t(y.shape(1)), row_bytes = int64_t(data.shape(1));
  require_blocks(width, rotation);
  const uint8_t* from = data.data();
  const int64_t *cell = cells.data(), n = int64_t(cells.size());
  float* to = y.data();
  nb::gil_scoped_release nogil;
  each_row(pool, n, [&](int, int64_t i) {
    widen_row_(from + cell[i] * row_bytes, type, width, to + i * width);
    if (rotation) hadamard_(to + i * width, width, rotation);
  });
}

ALEATOR_BIND(quantise) {
  m.def("store_rows", &store_rows, "pool"_a, "type"_a, "rotation"_a, "x"_a, "data"_a.noconvert(),
        "cells"_a,
        "data[cells[i]] = row i of x float32 [n, width], first rotated by a Hadamard matrix in "
        "blocks of `rotation` elements (0: not), rounded to type 'F32', 'F16', 'BF16', 'Q8_0', "
        "'Q4_0', 'Q4_1', 'Q5_0', 'Q5_1' or 'IQ4_NL'; data uint8 [n_cells, row bytes], cells int64 "
        "[n].  ValueError, with nothing changed, when sizes disagree or a cell is out of range.");
  m.def("load_rows", &load_rows, "pool"_a, "type"_a, "rotation"_a, "data"_a, "cells"_a,
        "y"_a.noconvert(),
        "The other way: y[i] float32 [n, width] = row cells[i] of data, rotated back.");
}

}  // namespace aleator
