"""Model files and the decoders that compute with them."""

from typing import TYPE_CHECKING

from aleator.core.on_demand import on_demand

if TYPE_CHECKING:
    from aleator.models.build import build_decoder
    from aleator.models.decoder import Decoder
    from aleator.models.weights import Weights, open_weights

__all__ = ["Decoder", "Weights", "build_decoder", "open_weights"]

__getattr__ = on_demand(
    __name__,
    {
        "build": "build_decoder",
        "decoder": "Decoder",
        "weights": "Weights open_weights",
    },
)
