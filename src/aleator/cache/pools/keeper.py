"""What the pool of recurrent states asks of whoever keeps the states of cached prefixes."""

from __future__ import annotations

from typing import Protocol

from aleator.cache.pools.history import History
from aleator.cache.pools.run import Run


class Keeper(Protocol):
    """The states of cached prefixes; see :mod:`aleator.cache.prefix.states`."""

    def number(self, seq: int) -> int:
        """The number under which the states at boundaries of a sequence's text are kept."""

    def of(self, seq: int) -> History:
        """(row, position) of the states at boundaries of a sequence's text, ascending."""

    def take(self, run: Run) -> None:
        """Have a run leave its states at boundaries too."""

    def hold(self, seq: int, text: int, length: int) -> None:
        """Keep the states of a sequence's first ``length`` tokens as those of ``text``."""

    def give_up(self, text: int, length: int) -> None:
        """Give up what stands for more than ``length`` tokens."""

    def holds(self, seq: int, length: int) -> bool:
        """Whether a state of the sequence's first ``length`` tokens is held."""

    def serves(self, text: int, length: int) -> int:
        """The most of a text's first ``length`` tokens after which a state is kept."""

    def adopt(self, text: int, seq: int, length: int) -> None:
        """Let a sequence continue from a text's state after ``length`` tokens."""
