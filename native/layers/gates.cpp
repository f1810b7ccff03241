#include "layers/gates.hpp"

#include <vector>

#include "layers/elementary.hpp"

namespace aleator {

float tanh_rounded(float x) { return float(tanh_double(x)); }

// Made at the first call.
static const uint16_t* gelu_table() {
  static const std::vector<uint16_t> table = [] {
    std::vector<uint16_t> values(1 << 16);
    fill_gelu_table_(values.data());
    return values;
  }();
  return table.data();
}

void apply_gate(Gate kind, float* gate, const float* up, int64_t n) {
  switch (kind) {
    case Gate::silu:
      return swiglu_(gate, up, n);
    case Gate::silu_clamped:
      return swiglu_clamped_(gate, up, n);
    case Gate::gelu:
      return geglu_(gate, up, n);
    case Gate::gelu_rounded:
      return geglu_rounded_(gate, up, n, gelu_table());
    case Gate::gelu_exact:
      return geglu_exact_(gate, up, n);
    case Gate::relu_squared:
      return square_glu_(gate, up, n);
  }
}

}  // namespace aleator
