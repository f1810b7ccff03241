"""A change of the cache that is taken back exactly if it fails, and the cells of one micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from aleator._native import seen_cells
from aleator.cache.cell_tensors import CellTensors
from aleator.cache.shift import settle
from aleator.core.errors import CacheFull

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

    """

    __slots__ = ("_cache", "positions", "seen", "slots")

    def __init__(
        self,
        cache: KVCache,
        slots: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int32],
        seqs: npt.NDArray[np.int32],
        causal: bool = True,
    ) -> None:
        self._cache, self.slots, self.positions = cache, slots, positions
        cells, keys = cache.cells, cache.key_positions
        keys[slots] = 0 if cache.k_storage == "raw" else positions
        self.seen = Seen(*seen_cells(cells, positions, seqs, causal, keys))

    def tensors(self) -> CellTensors:
        """The same for layers that compute with torch."""
        return CellTensors(self._cache, self)


class Step:
    """A change that is taken back, exactly, if the block under ``with`` raises anything at all."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._undo: list[Callable[[], None]] = []
        self._evicted = False

    def __enter__(self) -> Step:
        self._cache.cells.begin()
        if self._cache.prefix is not None:
            self._cache.prefix.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self._cache.cells.commit()
            if self._cache.prefix is not None:
                self._cache.prefix.commit()
            return
        for undo in reversed(self._undo):
            undo()
        self._cache.cells.rollback()
        if self._cache.prefix is not None:
            self._cache.prefix.rollback()

    def make_room(self, needed: int) -> None:
        """See to it that so many cells are free: kept texts go first, then CacheFull is raised."""
        cache = self._cache
        if needed <= cache.free:
            return
        free = cache.free
        while cache.prefix is not None and cache.prefix.evict_block():
            self._evicted = True
            if needed <= cache.free:
                return
        raise CacheFull(needed, free, cache.free - free)

    def preserve(self, cells: npt.NDArray[np.int64]) -> None:
        """Keep what these cells store now, for the case that the block raises."""
        cache = self._cache
        positions = cache.key_positions[cells]
        kept = [
            (side, layer, index, side.take(layer, index))
            for side in (cache.keys, cache.values)
            for layer, device in enumerate(cache.devices)
            for index in (torch.from_numpy(cells).to(device),)
        ]

        def undo() -> None:
            for side, layer, index, rows in kept:
                side.put(layer, index, rows)
            cache.key_positions[cells] = positions

        self._undo.append(undo)

    def apply_shifts(self) -> None:
        """Settle pending shifts: see :mod:`aleator.cache.shift`."""
        if not self._cache.cells.has_shift:
            return
        undo = settle(self._cache)
        if undo is not None:
            self._undo.append(undo)
        self._cache.cells.clear_shifts()

    def place(
        self,
        positions: npt.NDArray[np.int32],
        seqs: npt.NDArray[np.int32],
        owners: npt.NDArray[np.uint64],
        causal: bool = True,
    ) -> MicroBatch:
        """Give T tokens cells: ``seqs`` is each one's first sequence, ``owners`` all, as bits.

        ``causal``: a token sees its sequence's cells at positions not after its own, else all of them.
        """
        slots = self._cache.cells.place(positions, owners)
        if self._evicted:  # they may be cells that a failure gives back to a kept text
            self.preserve(slots)
        return MicroBatch(self._cache, slots, positions, seqs, causal)
