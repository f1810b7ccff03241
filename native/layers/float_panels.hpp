// Rows of floats that are widened or copied first, for many tokens. Included by linear.isa.cpp
// only.
#pragma once

#include <cstring>

#include "layers/float_tiles.hpp"

namespace aleator::ALEATOR_ISA {

// Where registers hold a part of the lanes, rows of W are read twice for every tile, and scaled
// ones take longer to read. For so many tokens they are widened first, a chunk at a time, which
// stays in the first-level cache.
constexpr int64_t most_chunk = 768;

// Elements [0, end) of a row as float32; in blocks whole ones, zeros after the last element.
template <class Read>
static void widen(const uint8_t* p, int64_t end, float* y) {
  int64_t i = 0;
  if constexpr (Grouped<Read>) {
    const auto group = [&](const uint8_t* at) {
      typename OfGroup<Read, 1>::Block block(at);
#pragma GCC unroll 4
      for (int j = 0; j < Read::step; j += 16) store16(y + i + j, block.sixteen(j));
    };
    for (; i + Read::step <= end; i += Read::step) group(p + Read::bytes(i));
    if constexpr (!scaled(Read::type))  // those are whole groups
      if (i < end) {
        alignas(64) uint8_t last[Read::bytes(Read::step)] = {};
        std::memcpy(last, p + Read::bytes(i), size_t(Read::bytes(end - i)));
        group(last);
      }
  } else {
    for (; i + 16 <= end; i += 16) store16(y + i, load16_as<Read>(p, i));
    if (i < end) store16(y + i, load16_as<Read>(p, i, end - i), end - i);
  }
}

}  // namespace aleator::ALEATOR_ISA
