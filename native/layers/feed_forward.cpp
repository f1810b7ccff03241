#include "layers/feed_forward.hpp"

#include "layers/gelu.hpp"
#include "layers/rows.hpp"

namespace aleator {

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
