// What is read of a model's bytes at the speed of memory: fingerprints, and whether weights are
// finite.
#include <algorithm>
#include <bit>
#include <cstring>

#include "bind.hpp"
#include "samplers/binding.hpp"

namespace aleator {
namespace {

template <typename Word>
Word read(const uint8_t* at) {
  Word word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

// XXH64 of blocks of a file (the algorithm is Yann Collet's, its specification public): what a
// model's fingerprint is made of.
constexpr uint64_t p1 = 0x9E3779B185EBCA87, p2 = 0xC2B2AE3D27D4EB4F, p3 = 0x165667B19E3779F9,
                   p4 = 0x85EBCA77C2B2AE63, p5 = 0x27D4EB2F165667C5;

uint64_t round(uint64_t sum, uint64_t word) { return std::rotl(sum + word * p2, 31) * p1; }

uint64_t merge(uint64_t hash, uint64_t sum) { return (hash ^ round(0, sum)) * p1 + p4; }

uint64_t xxh64(const uint8_t* at, size_t n, uint64_t seed) {
  const uint8_t* end = at + n;
  uint64_t hash = seed + p5;
  if (n >= 32) {
    uint64_t a = seed + p1 + p2, b = seed + p2, c = seed, d = seed - p1;
    for (; end - at >= 32; at += 32) {
      a = round(a, read<uint64_t>(at));
      b = round(b, read<uint64_t>(at + 8));
      c = round(c, read<uint64_t>(at + 16));
      d = round(d, read<uint64_t>(at + 24));
    }
    hash = std::rotl(a, 1) + std::rotl(b, 7) + std::rotl(c, 12) + std::rotl(d, 18);
    hash = merge(merge(merge(merge(hash, a), b), c), d);
  }
  hash += n;
  for (; end - at >= 8; at += 8)
    hash = std::rotl(hash ^ round(0, read<uint64_t>(at)), 27) * p1 + p4;
  if (end - at >= 4) {
    hash = std::rotl(hash ^ (read<uint32_t>(at) * p1), 23) * p2 + p3;
    at += 4;
  }
  for (; at < end; ++at) hash = std::rotl(hash ^ (*at * p5), 11) * p1;
  hash = (hash ^ (hash >> 33)) * p2;
  hash = (hash ^ (hash >> 29)) * p3;
  return hash ^ (hash >> 32);
}

// Looks for NaN and infinities in stored weights, without widening them.
//
// Weights are finite iff no exponent field has all its bits set; of a quantised type that holds for
// the half-precision scales of its blocks, or for the exponents that are its scales.

// Chunks without a branch inside vectorise; only a chunk with a hit is searched.
template <typename Word, bool Contiguous>
int64_t search(const uint8_t* data, int64_t n, int64_t stride_, Word mask) {
  const int64_t stride = Contiguous ? int64_t(sizeof(Word)) : stride_;
  constexpr int64_t chunk = 4096;
  for (int64_t start = 0; start < n; start += chunk) {
    const int64_t end = std::min(n, start + chunk);
    Word hits = 0;
    for (int64_t i = start; i < end; ++i)
      hits |= Word((read<Word>(data + i * stride) & mask) == mask);
    if (!hits) continue;
    for (int64_t i = start; i < end; ++i)
      if ((read<Word>(data + i * stride) & mask) == mask) return i;
  }
  return -1;
}

template <typename Word>
int64_t find(const uint8_t* data, int64_t n, int64_t stride, uint32_t mask) {
  return stride == int64_t(sizeof(Word)) ? search<Word, true>(data, n, stride, Word(mask))
                                         : search<Word, false>(data, n, stride, Word(mask));
}

int64_t find_nonfinite(const Bytes& data, int64_t offset, int64_t stride, int64_t width,
                       uint32_t mask) {
  const int64_t size = int64_t(data.size());
  if ((width != 1 && width != 2 && width != 4) || offset < 0 || stride < offset + width ||
      size % stride)
    throw nb::value_error("find_nonfinite: words must lie inside blocks that fill the data");
  const uint8_t* first = data.data() + offset;
  nb::gil_scoped_release release;
  const int64_t n = size / stride;
  return width == 1   ? find<uint8_t>(first, n, stride, mask)
         : width == 2 ? find<uint16_t>(first, n, stride, mask)
                      : find<uint32_t>(first, n, stride, mask);
}

}  // namespace

ALEATOR_BIND(fingerprint) {
  m.def(
      "xxh64_blocks",
      [](const Bytes& data, uint64_t block, uint64_t seed) {
        const uint64_t n = data.size();
        if (!block) throw nb::value_error("xxh64_blocks: a block has a byte or more");
        std::vector<uint64_t> hashes;
        {
          nb::gil_scoped_release release;
          for (uint64_t at = 0; at < n || hashes.empty(); at += block)
            hashes.push_back(xxh64(data.data() + at, std::min(block, n - at), seed));
        }
        return to_numpy(std::move(hashes));
      },
      "data"_a, "block"_a, "seed"_a = 0,
      "XXH64 of each block of this many bytes; the last may be shorter, and one that is empty "
      "stands for no data.");
}

ALEATOR_BIND(finite) {
  m.def(
      "find_nonfinite", &find_nonfinite, "data"_a, "offset"_a, "stride"_a, "width"_a, "mask"_a,
      "Index of the first block of `stride` bytes in `data` (uint8 [n]) whose word of `width` (1, "
      "2 or 4) bytes at `offset` has all bits of `mask`, an exponent field, set; -1 if none has.");
}

}  // namespace aleator
