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

// Keeps GCC from reading v from memory again in every instruction that takes it.
static inline vf loaded_once(vf v) {
#if defined(ALEATOR_ISA_v4)
  asm("" : "+v"(v));
#elif defined(ALEATOR_ISA_v3)
  asm("" : "+x"(v));
#endif
  return v;
}

struct ReadPairs {
  static constexpr Stored type = Stored::bf16;
  static constexpr int step = 32;
  static constexpr int64_t bytes(int64_t i) { return 2 * i; }
  static vf widened(vi both, int j) {
    const bool upper = (j == 0) == (std::endian::native == std::endian::little);
    return reinterpret<vf>(upper ? both & -0x10000 : both << 16);
  }
  struct Block {
    explicit Block(const uint8_t* p) : pairs(p) {}
    v16 sixteen(int j) const {
#if defined(ALEATOR_ISA_v4)  // by one instruction each, without a register more
      if (j == 0) return {reinterpret<vf>(_mm512_maskz_loadu_epi16(0xaaaaaaaa, pairs))};
#endif
      return each_part([&](int k) { return widened(load_as<vi>(pairs + 4 * k * lanes), j); });
    }
    const uint8_t* pairs;
  };
};

// How a group is read where there are so many sums: with 32 registers, of which those take less
// than 24, once for both sixteens.
template <class Read, int sums>
struct OfGroup {
  using Block = typename Read::Block;
};
#if defined(ALEATOR_ISA_v4)
template <int sums>
  requires(sums < 24)
struct OfGroup<ReadPairs, sums> {
  struct Block {
    explicit Block(const uint8_t* p) : both(reinterpret<vi>(loaded_once(load_as<vf>(p)))) {}
    v16 sixteen(int j) const { return {ReadPairs::widened(both, j)}; }
    vi both;
  };
};
#endif

// Where sums take so many of 16 registers that two sixteens side by side would lack some, they are
// read in turns of one loop, which moves bytes by a table in memory.
template <class Read, int sums>
constexpr bool one_by_one = false;
#if defined(ALEATOR_ISA_v3)
template <int sums>
constexpr bool one_by_one<ReadPairs, sums> = sums >= 12;
struct Moves {
  alignas(32) uint8_t of[2][32];
};
constexpr Moves moves = [] {
  Moves all{};
  for (int j = 0; j < 2; j++)  // of each pair the second element's bytes, or the first one's
    for (int i = 0; i < 32; i++) all.of[j][i] = uint8_t(i % 4 < 2 ? 255 : i % 16 - 2 * j);
  return all;
}();
#endif
[[maybe_unused]] static inline v16 moved(const uint8_t* p, [[maybe_unused]] int j) {
  return each_part([&](int k) {
    vf both = load_as<vf>(p + 4 * k * lanes);
#if defined(ALEATOR_ISA_v3)
    asm("vpshufb %1, %0, %0" : "+x"(both) : "m"(moves.of[j / 16]));
#endif
    return both;
  });
}

}  // namespace aleator::ALEATOR_ISA
