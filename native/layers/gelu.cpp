#include "layers/gelu.hpp"

#include <vector>

#include "layers/elementary.hpp"

namespace aleator {

float tanh_rounded(float x) { return float(tanh_double(x)); }

const uint16_t* gelu_table() {
  static const std::vector<uint16_t> table = [] {
    std::vector<uint16_t> values(1 << 16);
    fill_gelu_table_(values.data());
    return values;
  }();
  return table.data();
}

}  // namespace aleator
