#include "layers/adapters.hpp"

#include "layers/lanes16.hpp"

namespace aleator::ALEATOR_ISA {

void add_low_rank(const Weights& b, int64_t begin, int64_t end, const float* low, int64_t rank,
                  float* y) {
  with_floats(b.type, [&](auto read) {
    using Read = decltype(read);
    for (int64_t at = begin / 16 * 16; at < end; at += 16) {
      const int64_t first = at < begin ? begin : at, last = at + 16 < end ? at + 16 : end;
      float some[16] = {};
      if (last - first < 16) std::memcpy(some + (first - at), y + first, size_t(last - first) * 4);
      v16 sum = last - first < 16 ? load16(some) : load16(y + at);
      const uint8_t* columns = b.data + at / 16 * rank * b.row_bytes;
      for (int64_t j = 0; j < rank; j++)
        sum = fused(load16_as<Read>(columns + j * b.row_bytes, 0), splat16(low[j]), sum);
      if (last - first == 16) {
        store16(y + at, sum);
      } else {
        store16(some, sum);
        std::memcpy(y + first, some + (first - at), size_t(last - first) * 4);
      }
    }
  });
}

}  // namespace aleator::ALEATOR_ISA
