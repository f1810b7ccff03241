// Rows of W in BF16 as products take them: of each 32 elements the odd ones, then the even ones.
// Included by *.isa.cpp files only.
#pragma once

#include <bit>

#include "layers/lanes16.hpp"

namespace aleator::ALEATOR_ISA {

// Types that are read in groups of `step` elements: Block(p).sixteen(j) gives elements j to j + 16
// of the group at p, j a multiple of 16 that is known when this is compiled.
template <class Read>
concept Grouped = requires { typename Read::Block; };

struct ReadPairs {
  static constexpr Stored type = Stored::bf16;
  static constexpr int step = 32;
  static constexpr int64_t bytes(int64_t i) { return 2 * i; }
  struct Block {
    explicit Block(const uint8_t* p) : pairs(p) {}
    v16 sixteen(int j) const {
      const bool upper = (j == 0) == (std::endian::native == std::endian::little);
      return each_part([&](int k) {
        const vi both = load_as<vi>(pairs + 4 * k * lanes);
        return reinterpret<vf>(upper ? both & -0x10000 : both << 16);
      });
    }
    const uint8_t* pairs;
  };
};

// A group of which only the first n elements are there; zeros follow.
template <class Read>
struct Filled {
  Filled() = default;
  Filled(const uint8_t* p, int64_t n) { std::memcpy(bytes, p, size_t(Read::bytes(n))); }
  alignas(64) uint8_t bytes[Read::bytes(Read::step)] = {};
};

}  // namespace aleator::ALEATOR_ISA
