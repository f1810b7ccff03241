#include "layers/grids.hpp"

#include "layers/grid_numbers.hpp"

namespace aleator {

template <int elements, int entries, size_t values>
static constexpr Grid<entries, elements> unpacked(const uint16_t (&numbers)[entries],
                                                  const uint8_t (&of)[values]) {
  constexpr int bits = 16 / elements == 2 ? 2 : 3;
  Grid<entries, elements> made{};
  for (int i = 0; i < entries; i++)
    for (int j = 0; j < elements; j++)
      made[size_t(i)][size_t(j)] = of[numbers[i] >> (bits * j) & ((1 << bits) - 1)];
  return made;
}

static constexpr uint8_t iq2_values[] = {8, 25, 43};
static constexpr uint8_t iq3_xxs_values[] = {4, 12, 20, 28, 36, 44, 52, 62};
static constexpr uint8_t iq3_s_values[] = {1, 3, 5, 7, 9, 11, 13, 15};
static constexpr uint8_t iq1_values[] = {1, 9, 17};

constexpr Grid<256, 8> iq2_xxs_grid = unpacked<8>(iq2_xxs_numbers, iq2_values);
constexpr Grid<512, 8> iq2_xs_grid = unpacked<8>(iq2_xs_numbers, iq2_values);
constexpr Grid<1024, 8> iq2_s_grid = unpacked<8>(iq2_s_numbers, iq2_values);
constexpr Grid<256, 4> iq3_xxs_grid = unpacked<4>(iq3_xxs_numbers, iq3_xxs_values);
constexpr Grid<512, 4> iq3_s_grid = unpacked<4>(iq3_s_numbers, iq3_s_values);
constexpr Grid<2048, 8> iq1_grid = unpacked<8>(iq1_s_numbers, iq1_values);

template <class G>
static GridView view(const G& grid) {
  return {grid[0].data(), int64_t(grid.size()), int64_t(grid[0].size())};
}

GridView grid_of(const std::string& name) {
  if (name == "IQ2_XXS") return view(iq2_xxs_grid);
  if (name == "IQ2_XS") return view(iq2_xs_grid);
  if (name == "IQ2_S") return view(iq2_s_grid);
  if (name == "IQ3_XXS") return view(iq3_xxs_grid);
  if (name == "IQ3_S") return view(iq3_s_grid);
  if (name == "IQ1_S" || name == "IQ1_M") return view(iq1_grid);
  return {};
}

}  // namespace aleator
