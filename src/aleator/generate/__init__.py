"""From batches of tokens to logits, and from logits to text."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aleator.generate.batch import Batch
    from aleator.generate.context import Context

__all__ = ["Batch", "Context"]

# Imported when first used: options of the command line need no torch.
_MODULES = {"Batch": "batch", "Context": "context"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"aleator.generate.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
