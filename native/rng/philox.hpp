// Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): a counter goes
// in, four random words come out, and there is no state.  Contract: docs/numerics.md, "Random
// numbers".
#pragma once

#include <array>
#include <cstdint>

#include "contract.hpp"

namespace aleator {

// The ten rounds: round(multipliers, keys).
template <typename Round>
inline void philox_rounds(Round round, uint64_t key) {
  uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
  for (int i = 0; i < contract::philox_rounds; ++i) {
    round(contract::philox_multipliers[0], contract::philox_multipliers[1], k0, k1);
    k0 += contract::philox_key_steps[0];
    k1 += contract::philox_key_steps[1];
  }
}

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, uint64_t key) {
  philox_rounds(
      [&](uint32_t m0, uint32_t m1, uint32_t k0, uint32_t k1) {
        const uint64_t a = uint64_t{m0} * counter[0], b = uint64_t{m1} * counter[2];
        counter = {uint32_t(b >> 32) ^ counter[1] ^ k0, uint32_t(b),
                   uint32_t(a >> 32) ^ counter[3] ^ k1, uint32_t(a)};
      },
      key);
  return counter;
}

// A stream: the purpose, the ordinal of the sampler among those of its kind, and the completion's
// index.
inline uint32_t stream_word(Purpose purpose, uint32_t ordinal, uint32_t completion) {
  return uint32_t(purpose) << contract::purpose_shift | ordinal << contract::ordinal_shift |
         completion;
}

// The seed and stream of one sampler that draws.
struct Stream {
  uint64_t seed;
  uint32_t ordinal;
};

// One 64-bit uniform: the first two words of the block, low word first.
inline uint64_t philox_u64(uint64_t seed, uint32_t index, uint64_t position, uint32_t stream) {
  const auto w = philox4x32({index, uint32_t(position), uint32_t(position >> 32), stream}, seed);
  return w[0] | uint64_t(w[1]) << 32;
}

inline uint64_t uniform(Purpose purpose, Stream stream, uint64_t position, uint32_t completion,
                        uint32_t index = 0) {
  return philox_u64(stream.seed, index, position, stream_word(purpose, stream.ordinal, completion));
}

}  // namespace aleator
