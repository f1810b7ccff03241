#include "layers/feed_forward.hpp"

#include "layers/gelu.hpp"
#include "layers/rows.hpp"

namespace aleator {

static const auto swiglu_ = ALEATOR_PICK(swiglu);
static const auto swiglu_clamped_ = ALEATOR_PICK(swiglu_clamped);
static const auto geglu_ = ALEATOR_PICK(geglu);
static const auto geglu_exact_ = ALEATOR_PICK(geglu_exact);
static const auto square_glu_ = ALEATOR_PICK(square_glu);
static const auto geglu_rounded_ = ALEATOR_PICK(geglu_rounded);

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
