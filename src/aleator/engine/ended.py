"""What an engine tells of a request that has ended."""

from __future__ import annotations

from collections.abc import Callable

from aleator.core.records import dataclass


@dataclass(frozen=True)
class Ended:
    """A request that has ended; times are seconds from its submission on.

    Attributes:
        reason: why its text ended, "error" where an error ended it.
        prompt: tokens of its prompt.
        tokens: tokens that were drawn.
        queued: until it began; None: it never did.
        first: until its first token was drawn; None: none was.
        seconds: until it ended.
    """

    reason: str
    prompt: int
    tokens: int
    queued: float | None
    first: float | None
    seconds: float


OnEnd = Callable[[Ended], None]
"""Told of every request that ends, in the engine's thread; must be quick and raise nothing."""
