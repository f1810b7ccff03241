#include "layers/angles.hpp"

#include "layers/elementary.hpp"

namespace aleator {

void rotary_angles(const Rotation& r, const int32_t* positions, int64_t n, double sign,
                   double magnitude, float* out) {
  for (int64_t i = 0; i < n; i++)
    for (int64_t p = 0; p < r.pairs; p++) {
      const CosSin of = cos_sin(sign * positions[i] * r.frequencies[p]);
      *out++ = float(magnitude * of.cos);
      *out++ = float(magnitude * of.sin);
    }
}

}  // namespace aleator
