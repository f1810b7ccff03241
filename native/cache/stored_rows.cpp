// Copies of what some cells store in every layer, taken and put back in one call.
#include <cstring>

#include "bind.hpp"
#include "errors.hpp"

namespace aleator::cache {
namespace {

using Layer = Array<uint8_t, 2>;
using Index = Array<const int64_t>;

class StoredRows {
 public:
  explicit StoredRows(std::vector<Layer> layers) : layers_(std::move(layers)) {
    for (const Layer& l : layers_) {
      if (l.shape(0) != layers_[0].shape(0)) refuse("layers must have equally many cells");
      bytes_ += l.shape(1);
    }
  }

  size_t bytes() const { return bytes_; }

  nb::ndarray<nb::numpy, uint8_t> take(Index cells) const {
    check(cells);
    std::vector<uint8_t> taken(cells.size() * bytes_);
    {
      const nb::gil_scoped_release others;
      each(cells, cells.size(), 0, taken.data(),
           [](uint8_t* row, uint8_t* copy, size_t n) { std::memcpy(copy, row, n); });
    }
    return owned_array(std::move(taken));
  }

  void put(Index cells, Bytes taken, size_t first) const {
    check(cells);
    const size_t rows = bytes_ ? taken.size() / bytes_ : 0;
    if (rows * bytes_ != taken.size() || first > rows || cells.size() > rows - first)
      refuse("taken is not of so many cells");
    const nb::gil_scoped_release others;
    each(cells, rows, first, taken.data(),
         [](uint8_t* row, const uint8_t* copy, size_t n) { std::memcpy(row, copy, n); });
  }

 private:
  void check(const Index& cells) const {
    for (size_t i = 0; i < cells.size(); ++i)
      if (cells(i) < 0 || layers_.empty() || cells(i) >= int64_t(layers_[0].shape(0)))
        refuse("cell ", cells(i), " is out of range");
  }
  // copies: of so many rows of each layer, one layer after the other; the cells are those from the
  // first on.  f gets the rows of cells that follow each other in one piece.
  template <typename Byte, typename F>
  void each(const Index& cells, size_t rows, size_t first, Byte* copies, F&& f) const {
    for (const Layer& l : layers_) {
      const size_t size = l.shape(1);
      for (size_t i = 0, n; i < cells.size(); i += n) {
        n = 1;
        while (i + n < cells.size() && cells(i + n) == cells(i) + int64_t(n)) ++n;
        f(l.data() + size_t(cells(i)) * size, copies + (first + i) * size, n * size);
      }
      copies += rows * size;
    }
  }

  std::vector<Layer> layers_;
  size_t bytes_ = 0;
};

}  // namespace

ALEATOR_BIND(stored_rows) {
  nb::class_<StoredRows>(m, "StoredRows", "What the cells of a cache store, in every layer.")
      .def(nb::init<std::vector<Layer>>(), "layers"_a,
           "layers: uint8 [cells, bytes] each, shared, not copied.")
      .def("take", &StoredRows::take, "cells"_a,
           "A copy of the rows of some cells (int64 [n]), uint8. ValueError for a cell out of "
           "range.")
      .def("put", &StoredRows::put, "cells"_a, "taken"_a, "first"_a = 0,
           "Store what take gave of some cells, the first of them and those after the last left "
           "out.")
      .def_prop_ro("row_bytes", &StoredRows::bytes, "Bytes of one cell, all layers together.");
}

}  // namespace aleator::cache
