"""Model files and the decoders that compute with them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aleator.models.build import build_decoder
    from aleator.models.decoder import Decoder
    from aleator.models.weights import Weights, open_weights

__all__ = ["Decoder", "Weights", "build_decoder", "open_weights"]


_MODULES = {
    "Decoder": "decoder",
    "Weights": "weights",
    "build_decoder": "build",
    "open_weights": "weights",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"aleator.models.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
