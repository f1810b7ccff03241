"""What a hybrid pool refuses because a sequence's next token would not see all that it should."""

from __future__ import annotations

from aleator.core.errors import CacheError, CannotRewind, CannotShift


class Forgotten(CacheError):
    """What the next token of a sequence sees is not held by some layers.

    Args:
        seq: the sequence.
        position: of its next token.
        layers: such as "window layers".

    """

    def __init__(self, seq: int, position: int, layers: str) -> None:
        super().__init__(f"sequence {seq} cannot go on at position {position}")
        self.seq, self.position, self.layers = seq, position, layers

    def of_a_rewind(self, oldest: int) -> CannotRewind:
        """The error of a rewind; ``oldest``: the lowest position, but 0, that is legal."""
        return CannotRewind(
            f"{self._needs}: the oldest legal position is {oldest}, or 0 to remove all of it",
            oldest,
        )

    def of_a_shift(self) -> CannotShift:
        """The error of a shift."""
        return CannotShift(
            f"{self._needs}: shift more at once, or create the context with swa_full=True"
        )

    @property
    def _needs(self) -> str:
        return (
            f"the next token of sequence {self.seq}, at position {self.position}, needs what its window or "
            "recurrent layers do not hold any more"
        )
