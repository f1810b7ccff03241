// Looks for NaN and infinities in stored weights, without widening them.
//
// Weights are finite iff no exponent field has all its bits set; of a quantised type that holds for
// the half-precision scales of its blocks, or for the exponents that are its scales.  Reads at
// memory speed.
#include <algorithm>
#include <cstring>

#include "bind.hpp"

namespace aleator {
namespace {

template <typename Word>
Word load(const uint8_t* p) {
  Word word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

// Chunks without a branch inside vectorise; only a chunk with a hit is searched.
template <typename Word, bool Contiguous>
int64_t search(const uint8_t* data, int64_t n, int64_t stride_, Word mask) {
  const int64_t stride = Contiguous ? int64_t(sizeof(Word)) : stride_;
  constexpr int64_t chunk = 4096;
  for (int64_t start = 0; start < n; start += chunk) {
    const int64_t end = std::min(n, start + chunk);
    Word hits = 0;
    for (int64_t i = start; i < end; ++i)
      hits |= Word((load<Word>(data + i * stride) & mask) == mask);
    if (!hits) continue;
    for (int64_t i = start; i < end; ++i)
      if ((load<Word>(data + i * stride) & mask) == mask) return i;
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
}  // namespace aleator

ALEATOR_BIND(finite) {
  m.def(
      "find_nonfinite", &aleator::find_nonfinite, "data"_a, "offset"_a, "stride"_a, "width"_a,
      "mask"_a,
      "Index of the first block of `stride` bytes in `data` (uint8 [n]) whose word of `width` (1, "
      "2 or 4) bytes at `offset` has all bits of `mask`, an exponent field, set; -1 if none has.");
}
