"""The cache of recurrent layers alone."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from aleator.cache.cache import Cache
from aleator.cache.devices import described
from aleator.cache.handle.recurrent import RecurrentSequence
from aleator.cache.options import CacheOptions, checked
from aleator.cache.pools.history import History
from aleator.cache.pools.kept_states import KeptStates, kept_rows
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.cache.pools.recurrent_rows import (
    RecurrentCheckpoint,
    RecurrentShape,
    own_rows,
    row_bytes,
)
from aleator.cache.prefix import PrefixConfig, require_config

__all__ = ["RecurrentCache", "RecurrentCheckpoint", "RecurrentShape"]

log = logging.getLogger(__name__)


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
        rollback: tokens that every sequence can be rewound by.
        device: where the states are; a list has one device per layer.
        prefix: cache prefixes (:meth:`keep`), by states at boundaries and at their ends; None: do not.
        architecture: the model's, as state files name it.
        n_layers: all layers of the model, which state files name too; None: these are all.

    Attributes:
        kept: the states of cached prefixes; None without ``prefix``.

    """

    def __init__(
        self,
        layers: Sequence[RecurrentShape],
        *,
        n_seq_max: int = CacheOptions.n_seq_max,
        rollback: int = CacheOptions.n_rollback,
        device: object = "cpu",
        prefix: PrefixConfig | None = None,
        architecture: str = "",
        n_layers: int | None = None,
    ) -> None:
        require_config(prefix)
        n_seq_max = checked("n_seq_max", n_seq_max)
        kept = kept_rows(prefix, n_seq_max, layers)
        self._states = RecurrentPool(
            layers,
            n_seq_max=n_seq_max,
            rollback=rollback,
            device=device,
            kept_rows=kept,
            architecture=architecture,
            n_layers=n_layers,
        )
        super().__init__(self._states, prefix, in_parts=True)
        self.kept: KeptStates | None = None
        if self.prefix is not None:
            self.kept = self._states.keeper = KeptStates(self._states, self.prefix, kept)
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

    @property
    def conv(self) -> list[Any]:
        """Per layer float32 [rows, channels, conv]."""
        return self._states.conv

    @property
    def ssm(self) -> list[Any]:
        """Per layer float32 [rows, channels, state]."""
        return self._states.ssm

    @property
    def states(self) -> dict[int, History]:
        """Per sequence that is not empty (row, position) of its states, oldest first; a copy."""
        return self._states.states.book()

    @property
    def size(self) -> int:
        """How many sequences can be held."""
        return self.n_seq_max

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
