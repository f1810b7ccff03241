// What the codebooks of ggml's IQ types stand for: an entry is eight elements, or four, as bytes.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

namespace aleator {

template <int entries, int elements>
using Grid = std::array<std::array<uint8_t, size_t(elements)>, size_t(entries)>;

// Magnitudes, whose signs the blocks have.
extern const Grid<256, 8> iq2_xxs_grid;
extern const Grid<512, 8> iq2_xs_grid;
extern const Grid<1024, 8> iq2_s_grid;
extern const Grid<256, 4> iq3_xxs_grid;
extern const Grid<512, 4> iq3_s_grid;
// 8 * v + 9 of -1, 0 and 1; one more or less is the blocks'.
extern const Grid<2048, 8> iq1_grid;

// Seven stored signs and the eighth, which makes their number even.
constexpr uint32_t eight_signs(uint32_t seven) {
  uint32_t odd = seven ^ seven >> 4;
  odd ^= odd >> 2;
  odd ^= odd >> 1;
  return seven | (odd & 1) << 7;
}

}  // namespace aleator
