#include "layers/gates.hpp"

#include <vector>

namespace aleator {

const uint16_t* gelu_table() {
  static const std::vector<uint16_t> table = [] {
    std::vector<uint16_t> values(1 << 16);
    fill_gelu_table_(values.data());
    return values;
  }();
  return table.data();
}

void apply_gate(Gate kind, float* gate, const float* up, int64_t n) {
  static const decltype(&isa_base::swiglu) gates[] = {swiglu_,         geglu_,       geglu_rounded_,
                                                      swiglu_clamped_, geglu_exact_, square_glu_};
  gates[int(kind)](gate, up, n);
}

}  // namespace aleator
