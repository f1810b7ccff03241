"""A change of the cache that is taken back exactly if it fails, and the cells of one micro-batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aleator._native import seen_cells
from aleator.cache.cell_tensors import CellTensors
from aleator.cache.journal import Transaction
from aleator.cache.plan import Plan

if TYPE_CHECKING:
    from aleator.cache.kv_cache import KVCache


class Seen(NamedTuple):
    """Which cells T tokens attend to: lists in order of position, of which each sees a beginning.

    Attributes:
        cells: int32, the lists one after the other.
        start: int64, where each begins, and the end of the last.
        list: int32 [T], each token's list.
        counts: int64 [T], how many of its cells the token sees.
        deltas: int32, how far the listed cells' stored keys are behind them; None: nowhere.

    """

    cells: npt.NDArray[np.int32]
    start: npt.NDArray[np.int64]
    list: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int64]
    deltas: npt.NDArray[np.int32] | None


class MicroBatch:
    """The cells of one micro-batch of T tokens, on the host.

    Attributes:
        slots: int64 [T], the cell of each token.
        positions: int32 [T].
        seen: the cells each token attends to.
        tokens: which tokens of the batch these are.
        wanted: int64, which of them want logits, counted from the start of the micro-batch.
        sections: int32 [T, 4], (t, y, x, z) of each token; None where a position is one number.

    """

    __slots__ = ("_cache", "positions", "sections", "seen", "slots", "tokens", "wanted")

    def __init__(
        self,
        cache: KVCache,
        slots: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int32],
        seqs: npt.NDArray[np.int32],
        causal: bool = True,
        tokens: slice | npt.NDArray[np.int64] = slice(None),
        wanted: npt.NDArray[np.int64] | None = None,
        sections: npt.NDArray[np.int32] | None = None,
    ) -> None:
        self._cache, self.slots, self.positions = cache, slots, positions
        self.tokens, self.sections = tokens, sections
        self.wanted = np.arange(len(slots)) if wanted is None else wanted
        cells, keys = cache.cells, cache.key_positions
        keys[slots] = 0 if cache.k_storage == "raw" else positions
        yx = None if sections is None else np.ascontiguousarray(sections[:, 1:3])
        self.seen = Seen(*seen_cells(cells, positions, seqs, causal, keys, yx))

    def tensors(self) -> CellTensors:
        """The same for layers that compute with torch."""
        return CellTensors(self._cache, self)


class Step(Transaction):
    """A change that is taken back, exactly, if the block under ``with`` raises anything at all.

    With a plan, iterating gives its micro-batches one after the other, placed in their cells::

        with cache.step(plan) as step:
            for part in step:
                rows = model(tokens[part.tokens], part.positions, part, part.wanted)

    Steps may stand within one another; the inner one's changes are then the outer one's too.
    """

    def __init__(self, cache: KVCache, plan: Plan | None = None) -> None:
        super().__init__(cache.journal)
        self._cache, self._plan = cache, plan

    def _entered(self) -> None:
        if self._plan is not None:
            self._cache.prepare(self._plan)

    def __iter__(self) -> Iterator[Any]:
        if self._plan is None:
            return iter(())
        return self._cache.carried_out(self._plan)

    def make_room(self, needed: int) -> None:
        """See to it that so many cells are free: kept texts go first, then CacheFull is raised."""
        self._cache.make_room(needed)

    def apply_shifts(self) -> None:
        """Settle pending shifts: see :mod:`aleator.cache.shift`."""
        self._cache.apply_shifts()

    def find(
        self,
        positions: npt.NDArray[np.int32],
        owners: npt.NDArray[np.uint64],
        extras: npt.NDArray[np.int32] | None = None,
    ) -> npt.NDArray[np.int64]:
        """Give T tokens cells and return them, int64 [T]; raises CacheFull.

        ``extras``: int32 [T, 3], y, x and token id of each, if the cells keep them.
        """
        return self._cache.find(positions, owners, extras)

    def place(
        self,
        positions: npt.NDArray[np.int32],
        seqs: npt.NDArray[np.int32],
        owners: npt.NDArray[np.uint64],
        causal: bool = True,
    ) -> Any:
        """Give T tokens cells: ``seqs`` is each one's first sequence, ``owners`` all, as bits.

        ``causal``: a token sees its sequence's cells at positions not after its own, else all of them.
        """
        return self._cache.place(positions, seqs, owners, causal)
