"""The cache of recurrent layers alone, and its handles."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from aleator.cache.cache import Cache
from aleator.cache.devices import described
from aleator.cache.journal import atomic
from aleator.cache.options import CacheOptions, checked, checked_delta, checked_divisor
from aleator.cache.pools.kept_states import kept_rows
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.cache.pools.recurrent_rows import (
    History,
    RecurrentCheckpoint,
    RecurrentShape,
    own_rows,
    row_bytes,
)
from aleator.cache.prefix_index import PrefixConfig
from aleator.cache.sequence import ContextShift, Handles
from aleator.cache.sequence import Sequence as Handle
from aleator.cache.sequence_verbs import Checkpoint
from aleator.core.arrays import Int32s, Int64s
from aleator.core.errors import CannotRewind, CannotShift
from aleator.core.forwarded import forwarded
from aleator.core.integers import UNBOUNDED, integer_in

__all__ = ["RecurrentCache", "RecurrentCheckpoint", "RecurrentSequence", "RecurrentShape"]

log = logging.getLogger(__name__)


class RecurrentSequence(Handle):
    """One sequence of a :class:`RecurrentCache`, made by :meth:`RecurrentCache.sequence` or :meth:`fork`.

    Its length is that of the text it stands for.  What would take a part out of its state is refused.
    """

    def __init__(self, cache: Handles, pool: RecurrentPool, id: int) -> None:
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
    def positions(self) -> Int32s:
        """The positions after which its state is held, ascending, int32."""
        return np.array([p for _, p in self._pool.states.history(self.id)], dtype=np.int32)

    @property
    def cells(self) -> Int64s:
        """The rows of these states, int64."""
        return np.array([row for row, _ in self._pool.states.history(self.id)], dtype=np.int64)

    @atomic
    def fork(self, upto: int | None = None) -> Handle:
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
        if start < stop < self.next:
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

    def slide(self, keep: int = 4, discard: int | None = None) -> ContextShift:
        """Refused: a state forgets nothing, and needs no room."""
        raise CannotShift(
            "a recurrent model's state cannot forget single positions, and takes no more room for a longer "
            "text: go on decoding"
        )


class RecurrentCache(Cache):
    """States of up to ``n_seq_max`` sequences.

    What is of cells is refused: NoCells.  A state has no parts, so:

    - Removing a range that ends with the newest position is a rewind: exact while the state before ``p0``
      is still held (``rollback`` tokens back), refused with :class:`CannotRewind` beyond.  Removing
      everything is always allowed.  A range without the newest position changes nothing, as in
      llama.cpp: what was read stays in the summary.
    - A copy is of the whole sequence, and replaces what the copy held.
    - Positions are labels: ``seq_add`` and ``seq_div`` move the newest one, for every sequence that
      shares the state.

    Args:
        layers: what each layer keeps.
        n_seq_max: sequence ids lie in [0, n_seq_max).
        prefix: cache prefixes (:meth:`keep`), by states at boundaries and at their ends; None: do not.
        options: ``rollback``: tokens that every sequence can be rewound by.

            ``device``: where the states are; a list has one device per layer.

            ``architecture``: the model's, as state files name it.

            ``n_layers``: all layers of the model, which state files name too; None: these are all.
    """

    def __init__(
        self,
        layers: Sequence[RecurrentShape],
        *,
        n_seq_max: int = CacheOptions.n_seq_max,
        prefix: PrefixConfig | None = None,
        **options: Any,
    ) -> None:
        kept = kept_rows(prefix, checked("n_seq_max", n_seq_max), layers)
        self._states = RecurrentPool(layers, n_seq_max=n_seq_max, kept_rows=kept, **options)
        super().__init__(self._states, prefix, partial_prefixes=True)
        log.info(
            "recurrent states: %d sequences, %d layers, %s: %.2f MiB",
            n_seq_max,
            len(layers),
            described(self.device_bytes),
            self.total_size / 2**20,
        )

    @staticmethod
    def bytes_for(
        layers: Iterable[RecurrentShape],
        *,
        n_seq_max: int = CacheOptions.n_seq_max,
        rollback: int = CacheOptions.n_rollback,
        prefix: PrefixConfig | None = None,
    ) -> int:
        """Bytes that the states will take, without allocating them."""
        layers, n_seq_max = list(layers), checked("n_seq_max", n_seq_max)
        rows = own_rows(n_seq_max, rollback) + kept_rows(prefix, n_seq_max, layers)
        return rows * row_bytes(layers)

    def __repr__(self) -> str:
        return f"RecurrentCache({self.used}/{self.n_seq_max} sequences used)"

    size: int = forwarded("n_seq_max", "How many sequences can be held.")
    conv: list[Any] = forwarded("_states.conv", "Per layer float32 [rows, channels, conv].")
    ssm: list[Any] = forwarded("_states.ssm", "Per layer float32 [rows, channels, state].")

    @property
    def states(self) -> dict[int, History]:
        """Per sequence that is not empty (row, position) of its states, oldest first; a copy."""
        return self._states.states.book()

    @property
    def used(self) -> int:
        """How many sequences are held."""
        return sum(self._states.newest_row(seq) >= 0 for seq in range(self.n_seq_max))

    def _handle(self, id: int) -> RecurrentSequence:
        return RecurrentSequence(self, self._states, id)

    def _sharers(self, seq: int, p0: int, p1: int) -> list[int]:
        return []

    def _edited(self, seqs: Sequence[int] | None, p0: int) -> None:
        """Nothing: a checkpoint is a copy of all that there is, and stays of use."""
