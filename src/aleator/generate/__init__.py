"""From batches of tokens to logits, and from logits to text."""

from typing import TYPE_CHECKING

from aleator.core.on_demand import on_demand

if TYPE_CHECKING:
    from aleator.generate.context import Batch, Context

__all__ = ["Batch", "Context"]

__getattr__ = on_demand(__name__, {"context": "Batch Context"})
