// Copies of what some cells store in every layer, taken and put back in one call.
#include <cstring>

#include "bind.hpp"
#include "errors.hpp"

namespace {

using aleator::Array;
using aleator::refuse;
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

  nb::ndarray<nb::numpy, uint8_t> take(Index cells) const {
    check(cells);
    std::vector<uint8_t> taken(cells.size() * bytes_);
    each(cells, [to = taken.data()](uint8_t* row, size_t n) mutable {
      std::memcpy(to, row, n);
      to += n;
    });
    return aleator::owned_array(std::move(taken));
  }

  void put(Index cells, aleator::Bytes taken) const {
    check(cells);
    if (taken.size() != cells.size() * bytes_) refuse("taken is not of so many cells");
    each(cells, [from = taken.data()](uint8_t* row, size_t n) mutable {
      std::memcpy(row, from, n);
      from += n;
    });
  }

 private:
  void check(const Index& cells) const {
    for (size_t i = 0; i < cells.size(); ++i)
      if (cells(i) < 0 || layers_.empty() || cells(i) >= static_cast<int64_t>(layers_[0].shape(0)))
        refuse("cell ", cells(i), " is out of range");
  }
  template <typename F>
  void each(const Index& cells, F&& f) const {
    for (const Layer& l : layers_)
      for (size_t i = 0; i < cells.size(); ++i)
        f(l.data() + static_cast<size_t>(cells(i)) * l.shape(1), l.shape(1));
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
      .def("put", &StoredRows::put, "cells"_a, "taken"_a, "Store what take gave of as many cells.");
}
