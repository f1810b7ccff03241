"""Model files and the decoders that compute with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aleator.models.decoder import Decoder, build_decoder
    from aleator.models.weights import Weights, open_weights

__all__ = ["Decoder", "Weights", "build_decoder", "open_weights"]


def __getattr__(name: str) -> Any:
    if name in ("Decoder", "build_decoder"):
        from aleator.models import decoder

        return getattr(decoder, name)
    if name in ("Weights", "open_weights"):
        from aleator.models import weights

        return getattr(weights, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
