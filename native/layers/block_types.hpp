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
  switch (type) {
    case Stored::q8_0:
      return f(BlockQ8_0{});
    case Stored::q4_0:
      return f(BlockQ4_0{});
    case Stored::q4_1:
      return f(BlockQ4_1{});
    case Stored::q5_0:
      return f(BlockQ5_0{});
    case Stored::q5_1:
      return f(BlockQ5_1{});
    case Stored::iq4_nl:
      return f(BlockIQ4_NL{});
    case Stored::mxfp4:
      return f(BlockMXFP4{});
    case Stored::q2_k:
      return f(BlockQ2_K{});
    case Stored::q3_k:
      return f(BlockQ3_K{});
    case Stored::q4_k:
      return f(BlockQ4_K{});
    case Stored::q5_k:
      return f(BlockQ5_K{});
    case Stored::q6_k:
      return f(BlockQ6_K{});
    case Stored::iq4_xs:
      return f(BlockIQ4_XS{});
    case Stored::iq2_xxs:
      return f(BlockIQ2_XXS{});
    case Stored::iq2_xs:
      return f(BlockIQ2_XS{});
    case Stored::iq2_s:
      return f(BlockIQ2_S{});
    case Stored::iq3_xxs:
      return f(BlockIQ3_XXS{});
    case Stored::iq3_s:
      return f(BlockIQ3_S{});
    case Stored::iq1_s:
      return f(BlockIQ1_S{});
    case Stored::iq1_m:
      return f(BlockIQ1_M{});
    case Stored::tq1_0:
      return f(BlockTQ1_0{});
    case Stored::tq2_0:
      return f(BlockTQ2_0{});
    default:
      return;
  }
}
template <class B>
constexpr bool large = block_shape(B::type).elements == 256;

}  // namespace aleator::ALEATOR_ISA
