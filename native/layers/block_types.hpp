// Every type of ggml's blocks, and what is the same of them all.  Included by *.isa.cpp files only.
#pragma once

#include "layers/blocks.hpp"
#include "layers/grid_blocks.hpp"

namespace aleator::ALEATOR_ISA {

// The scale of a block of 256 elements.
template <class B>
static inline float large_scale_of(const uint8_t* p) {
  if constexpr (requires { B::d(p); })
    return B::d(p);
  else
    return half_at(p + B::d_at);
}

// Calls f(Block{}) for a type in blocks.
template <class F>
static inline void with_block(Stored type, F&& f) {
  with_one_of<BlockQ8_0, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockIQ4_NL, BlockMXFP4,
              BlockQ2_K, BlockQ3_K, BlockQ4_K, BlockQ5_K, BlockQ6_K, BlockIQ4_XS, BlockIQ2_XXS,
              BlockIQ2_XS, BlockIQ2_S, BlockIQ3_XXS, BlockIQ3_S, BlockIQ1_S, BlockIQ1_M, BlockTQ1_0,
              BlockTQ2_0>(type, f);
}
template <class B>
constexpr bool large = block_shape(B::type).elements == 256;

}  // namespace aleator::ALEATOR_ISA
