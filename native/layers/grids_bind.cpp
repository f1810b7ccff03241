// Python's side of the codebooks of ggml's IQ types.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "bind.hpp"
#include "layers/grids.hpp"

namespace aleator {

using Codebook = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<2>, nb::c_contig, nb::ro>;

static Codebook codebook(const std::string& name) {
  const GridView grid = grid_of(name);
  if (!grid.data) throw std::invalid_argument("no codebook of " + name);
  return Codebook(grid.data, {size_t(grid.entries), size_t(grid.elements)}, nb::handle());
}

}  // namespace aleator

ALEATOR_BIND(grids) {
  using namespace aleator;
  m.def("codebook", &codebook, nb::arg("type"), nb::rv_policy::reference,
        "A codebook of ggml's IQ types, uint8 [entries, elements]: magnitudes; of IQ1_S and IQ1_M "
        "8 * v + 9 of the values v -1, 0 and 1.");
}
