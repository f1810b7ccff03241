// A checksum that finds damage.  It is no digest: whoever wants to can make other bytes with the
// same one.
#include <array>
#include <bit>
#include <cstring>

#include "bind.hpp"

namespace {

constexpr size_t kLanes = 8, kBlock = 8 * kLanes;

// Can be undone, whichever of the two is known: so damage within one word always changes its lane,
// and a changed lane what the lanes are mixed to.
uint64_t mixed(uint64_t state, uint64_t word) {
  return std::rotl((state ^ word) * 0x9E3779B97F4A7C15u, 29);
}

// Words take turns among lanes.  Damage of two words could cancel out in a lane; the sum of all
// that the lane was in between tells.
struct Lanes {
  std::array<uint64_t, kLanes> states{1, 2, 3, 4, 5, 6, 7, 8}, sums{};

  void take(const uint8_t* block) {
    for (size_t i = 0; i < kLanes; ++i) {
      uint64_t word;
      std::memcpy(&word, block + 8 * i, 8);
      if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
      states[i] = mixed(states[i], word);
      sums[i] += states[i];
    }
  }
};

nb::bytes checksum(aleator::Bytes data) {
  Lanes lanes;
  std::array<uint8_t, 16> made;
  {
    const nb::gil_scoped_release others;
    const uint8_t* at = data.data();
    size_t left = data.size();
    for (; left >= kBlock; at += kBlock, left -= kBlock) lanes.take(at);
    uint8_t last[kBlock] = {};
    if (left > 0) std::memcpy(last, at, left);
    lanes.take(last);
    uint64_t states = data.size(), sums = data.size();
    for (const uint64_t each : lanes.states) states = mixed(states, each);
    for (const uint64_t each : lanes.sums) sums = mixed(sums, each);
    for (size_t i = 0; i < 8; ++i) {
      made[i] = static_cast<uint8_t>(states >> 8 * i);
      made[8 + i] = static_cast<uint8_t>(sums >> 8 * i);
    }
  }
  return nb::bytes(made.data(), made.size());
}

}  // namespace

ALEATOR_BIND(checksum) {
  m.def(
      "checksum", &checksum, "data"_a,
      "16 bytes that tell of damage to data: of any within eight bytes for certain, of others but "
      "for one in 2^64.");
}
