"""The pool of layers that see every position: how operations on sequences change its cells."""

from __future__ import annotations

from typing import Any

import numpy as np

from aleator.cache.options import END
from aleator.cache.pools.cell_pool import CellPool
from aleator.cache.pools.pool import Pool
from aleator.core.arrays import Bools, Int32s
from aleator.core.errors import CacheError, CacheFull, CannotShift, NoCells, ParameterError


class AttentionPool(CellPool):
    """Keys and values of up to ``n_seq_max`` sequences, which may share cells."""

    def in_state(self, seq: int, positions: Int32s) -> Bools:
        """Which positions are part of a sequence's state: all."""
        return np.ones(len(positions), np.bool_)

    # Cached prefixes

    def hold(self, seq: int, text: int, length: int) -> None:
        """Let sequence ``text`` hold a sequence's first ``length`` tokens; no data moves."""
        self.cells.seq_cp(seq, text, 0, length)

    def shorten(self, text: int, length: int) -> None:
        self.cells.seq_rm(text, length, END)

    def holds(self, seq: int, length: int) -> bool:
        if self.cells.seq_pos_min(seq) != 0 or self.cells.seq_pos_max(seq) < length - 1:
            raise ParameterError(
                "tokens",
                f"sequence {seq} does not hold positions 0 to {length - 1}, which tokens names",
            )
        return True

    def usable_length(self, text: int, length: int) -> int:
        return length

    def reuse_prefix(self, text: int, seq: int, length: int) -> None:
        self.cells.seq_cp(text, seq, 0, length)

    def _leave_texts(self, seq: int, p0: int) -> None:
        """Take from cached prefixes the cells from ``p0`` on that they share with a sequence."""
        if self.texts is not None:
            for other in self.cells.sharers(seq, p0):
                self.texts.shorten(other, p0)

    # Verbs

    def seq_rm(self, seq: int, p0: int, p1: int) -> None:
        """Remove a sequence (-1: every one) from the cells in a range; a cell without sequences is free."""
        if seq == -1 and self.texts is not None:
            for text in self.texts.numbers():
                self.texts.shorten(text, p0)
        self.cells.seq_rm(seq, p0, p1)

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """Share cells; with ``policy="streams"``, where none are shared, copy ``src`` to ``dst`` at once."""
        if self.policy == "unified":
            self.cells.seq_cp(src, dst, p0, p1)
            return
        cells = self.cells.seq_cell_list(src)
        if len(cells) and (p0 > self.cells.seq_pos_min(src) or p1 <= self.cells.seq_pos_max(src)):
            raise ParameterError(
                "p0",
                "with policy='streams' a sequence is copied whole: leave p0 and p1 out, or use "
                "policy='unified'",
            )
        target = cells + (dst - src) * (self.cells.size // self.n_seq_max)
        self.cells.seq_rm(dst)
        self.keep_rows(target)
        self.rows.copy(cells, target)
        self.cells.duplicate(cells, target, dst, False)
        self.cells.follow_head(dst, src)

    def seq_keep(self, seq: int) -> None:
        self.cells.seq_keep(seq)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Move cells for all their sequences; free those below 0.  Keys are rotated at the next decode."""
        self.require_shift()
        if delta and p0 < p1:
            self._leave_texts(seq, p0)
        try:
            self.cells.seq_add(seq, p0, p1, delta)
        except ValueError as error:
            raise ParameterError("delta", str(error)) from None

    def seq_div(self, seq: int, p0: int, p1: int, divisor: int) -> None:
        self.require_shift()
        if divisor > 1 and p0 < p1:
            self._leave_texts(seq, p0)
        self.cells.seq_div(seq, p0, p1, divisor)

    def seq_pos_min(self, seq: int) -> int:
        return self.cells.seq_pos_min(seq)

    def seq_pos_max(self, seq: int) -> int:
        return self.cells.seq_pos_max(seq)

    def unshare(self, seq: int, p0: int, p1: int) -> None:
        """Copy the cells in a range that other sequences share; cached prefixes give up theirs instead."""
        self._leave_texts(seq, p0)
        shared = self.cells.shared(seq, p0, p1)
        while len(own := self.cells.find(len(shared))) < len(shared):
            if self.texts is not None and self.texts.evict_block():
                continue
            raise CacheFull(
                len(shared),
                self.free,
                message=f"{len(shared)} of the cells are shared and {self.free} are free to copy them "
                "to: close a sequence, or create the context with a larger n_ctx",
            )
        self.keep_rows(own)
        self.rows.copy(shared, own)
        self.cells.duplicate(shared, own, seq, True)

    # What rewinds and shifts are possible

    def require_shift(self) -> None:
        """Raise CannotShift unless keys can be rotated to new positions."""
        if self.rows.rotate is None:
            raise CannotShift("this model's keys cannot be rotated to new positions")

    def can_shift(self) -> bool:
        return self.rows.rotate is not None

    def oldest_rewind(self, seq: int) -> int:
        return 0

    rewindable = END

    def has_exactly(self, seq: int, n: int) -> bool:
        low, high = self.cells.seq_pos_min(seq), self.cells.seq_pos_max(seq)
        return (low, high, self.cells.seq_cells(seq)) == (0, n - 1, n)

    def checkpoint(self, seq: int) -> Any:
        return None

    def restore(self, seq: int, mark: Any) -> None:
        """Refuse: every rewind is possible without checkpoints."""
        raise CacheError("this cache makes no checkpoints: every rewind is possible without")


def first_of(pool: Pool) -> AttentionPool:
    """The part of a pool whose cells know every position; NoCells if there is none."""
    for leaf in pool.leaves:
        if isinstance(leaf, AttentionPool):
            return leaf
    raise NoCells(
        "this cache has no cells: a recurrent model has states and no cells; its sequences' positions are in "
        "seq_pos_max"
    )
