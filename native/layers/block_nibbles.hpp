// Blocks of 32 nibbles, one row in each lane: products of bytes then add up without sums over
// lanes. AVX2 and AVX-512; included by block_*.isa.cpp only.
#pragma once

#include "layers/block_dots.hpp"
#include "layers/interleaving.hpp"

namespace aleator::ALEATOR_ISA {

using Rows = const uint8_t* const (&)[lanes];

// A block of every row.
template <class B>
class NibblesOfRows {
 public:
  NibblesOfRows(Rows p, int64_t at) {
    q_ = sixteen_bytes([&](int r) { return p[r] + at + B::nibbles_at; });
    if constexpr (WithFifths<B>)
      for (int r = 0; r < lanes; r++) fifths_[r] = load_as<int32_t>(p[r] + at + B::fifths_at);
  }
  // Elements 4 i to 4 i + 3.
  vbytes four(int i) const {
    vbytes v = i < 4 ? q_.v[i] & 15 : q_.v[i - 4] >> 4;
    if constexpr (LookedUp<B>) v = shuffled(each_sixteen(load_as<__m128i>(table_of<B>().u)), v);
    if constexpr (WithFifths<B>) v |= fifth_bits(i);
    return v;
  }

 private:
  // 16 in every byte k of a lane whose bit 4 i + k is set.
  vbytes fifth_bits(int i) const {
    const vbytes own = each_sixteen(_mm_set1_epi32(i % 2 ? int32_t(0x80402010) : 0x08040201));
    const vbytes of = in_lanes(reinterpret<vbytes>(fifths_), i / 2, i / 2, i / 2, i / 2) & own;
    return reinterpret<vbytes>(of == own) & 16;
  }

  Sixteen q_;
  vi fifths_;
};

}  // namespace aleator::ALEATOR_ISA
