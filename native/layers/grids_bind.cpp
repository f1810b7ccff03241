// Python's side of the codebooks of ggml's IQ types.
#include <stdexcept>

#include "bind.hpp"
#include "layers/grids.hpp"

namespace aleator {

using Codebook = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<2>, nb::c_contig, nb::ro>;

static Codebook codebook(const std::string& name) {
  const GridView grid = grid_of(name);
  if (!grid.data) throw std::invalid_argument("no codebook of " + name);
  return Codebook(grid.data, {size_t(grid.entries), size_t(grid.elements)}, nb::handle());
}

ALEATOR_BIND(grids) {
  m.def("codebook", &codebook, "type"_a, nb::rv_policy::reference,
        "A codebook of ggml's IQ types, uint8 [entries, elements]: magnitudes; of IQ1_S and IQ1_M "
        "8 * v + 9 of the values v -1, 0 and 1.");
}

}  // namespace aleator
