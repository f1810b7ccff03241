"""From batches of tokens to logits, and from logits to text."""

from __future__ import annotations

from aleator.generate.batch import Batch
from aleator.generate.context import Context

__all__ = ["Batch", "Context"]
