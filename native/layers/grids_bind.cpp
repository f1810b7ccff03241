// Python's side of the codebooks of ggml's IQ types.

#include "bind.hpp"
#include "errors.hpp"
#include "layers/grids.hpp"

namespace aleator {

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

}  // namespace aleator
