"""A handle on one sequence of a recurrent cache."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aleator.cache.arguments import checked_delta, checked_divisor
from aleator.cache.handle.sequence import Checkpoint, Host, Sequence, Slid
from aleator.cache.journal import atomic
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.core.errors import CannotRewind, CannotShift
from aleator.core.integers import UNBOUNDED, integer_in


class RecurrentSequence(Sequence):
    """One sequence of a :class:`RecurrentCache`, made by :meth:`RecurrentCache.sequence` or :meth:`fork`.

    Its length is that of the text it stands for.  What would take a part out of its state is refused.
    """

    def __init__(self, cache: Host, pool: RecurrentPool, id: int) -> None:
        super().__init__(cache, id)
        self._pool = pool

    def __len__(self) -> int:
        """Its next position."""
        return self.next

    def __repr__(self) -> str:
        if self._cache is None:
            return f"RecurrentSequence({self.id}, closed)"
        return f"RecurrentSequence({self.id}, next position {self.next})"

    @property
    def pos_min(self) -> int | None:
        """Its newest position, as its state cannot be taken apart; None if it is empty."""
        return self.pos_max

    @property
    def positions(self) -> npt.NDArray[np.int32]:
        """The positions after which its state is held, ascending, int32."""
        return np.array([p for _, p in self._pool.states.history(self.id)], dtype=np.int32)

    @property
    def cells(self) -> npt.NDArray[np.int64]:
        """The rows of these states, int64."""
        return np.array([row for row, _ in self._pool.states.history(self.id)], dtype=np.int64)

    @atomic
    def fork(self, upto: int | None = None) -> Sequence:
        """A new sequence with the same state, or that before ``upto``; nothing is copied.

        Raises:
            CacheFull: no sequence id is free.
            CannotRewind: the state before ``upto`` is not held.

        """
        if upto is not None:
            upto = integer_in("upto", upto, 0, UNBOUNDED)
        other = self.cache.sequence()
        self.cache.seq_cp(self.id, other.id)
        if upto is not None:
            other.truncate(upto)
        return other

    @atomic
    def restore(self, mark: Checkpoint) -> None:
        """Go back to a checkpoint of this sequence, whatever has happened since.

        Raises:
            CannotRewind: it is of another sequence or another cache.

        """
        self._check_own(mark)
        if mark.copy is None:
            self.truncate(0)
        else:
            self.cache.restore(self.id, mark.copy)

    def drop(self, start: int, stop: int) -> None:
        """Remove positions [start, stop): the newest ones, as :meth:`truncate` would."""
        self._check_range(start, stop)
        if start < stop < self.next and start < self.next:
            raise CannotRewind(
                f"positions [{start}, {stop}) cannot be taken out of the middle of a state: truncate({start}) "
                "and decode the rest again",
                self.oldest_rewind(),
            )
        self.cache.seq_rm(self.id, start, max(stop, start))

    @atomic
    def shift(self, start: int, stop: int, delta: int) -> None:
        """Add ``delta`` to its newest position if that is in the range, for this sequence only."""
        self._check_range(start, stop)
        self._pool.relabel(self.id, start, stop, checked_delta(delta))

    @atomic
    def divide(self, start: int, stop: int, divisor: int) -> None:
        """Divide its newest position if that is in the range, for this sequence only."""
        self._check_range(start, stop)
        divisor = checked_divisor(divisor)
        newest = self.next - 1
        self._pool.relabel(self.id, start, stop, newest // divisor - newest)

    def slide(self, keep: int = 4, discard: int | None = None) -> Slid:
        """Refused: a state forgets nothing, and needs no room."""
        raise CannotShift(
            "a recurrent model's state cannot forget single positions, and takes no more room for a longer "
            "text: go on decoding"
        )
