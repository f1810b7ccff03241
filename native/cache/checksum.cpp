// A checksum that finds damage.  It is no digest: whoever wants to can make other bytes with the same one.
#include <bit>
#include <cstring>

#include "bind.hpp"

namespace {

constexpr size_t kLanes = 8, kBlock = 8 * kLanes;

// Each step can be undone, whichever of its two arguments is known: so damage within one word of a
// lane always changes the lane, and a changed lane the checksum.
uint64_t mixed(uint64_t state, uint64_t word) {
  return std::rotl((state ^ word) * 0x9E3779B97F4A7C15u, 29);
}

void take(uint64_t* lanes, const uint8_t* block) {
  for (size_t i = 0; i < kLanes; ++i) {
    uint64_t word;
    std::memcpy(&word, block + 8 * i, 8);
    if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
    lanes[i] = mixed(lanes[i], word);
  }
}

uint64_t checksum(aleator::Bytes data) {
  const nb::gil_scoped_release others;
  uint64_t lanes[kLanes] = {1, 2, 3, 4, 5, 6, 7, 8};
  const uint8_t* at = data.data();
  size_t left = data.size();
  for (; left >= kBlock; at += kBlock, left -= kBlock) take(lanes, at);
  uint8_t last[kBlock] = {};
  if (left > 0) std::memcpy(last, at, left);
  take(lanes, last);
  uint64_t sum = data.size();
  for (const uint64_t lane : lanes) sum = mixed(sum, lane);
  return mixed(sum, sum >> 32);
}

}  // namespace

ALEATOR_BIND(checksum) {
  m.def("checksum", &checksum, "data"_a,
        "64 bits that tell of damage to bytes: of any within eight bytes for certain, of others but "
        "for one in 2^64.");
}
