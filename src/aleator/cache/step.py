"""A change of the cache that is taken back exactly if it fails, and the cells of one micro-batch."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from aleator.cache.cell_tensors import CellTensors
from aleator.core.errors import CacheFull

if TYPE_CHECKING:
    from aleator.cache.kv_cache import KVCache


class MicroBatch:
    """The cells of one micro-batch of T tokens, on the host.

    Attributes:
        slots: int64 [T], the cell of each token.
        visible: bool [T, n], which of the cells 0 to n - 1 each token attends to; n - 1 is the
            highest used cell.
        n_visible: how many are True.

    """

    __slots__ = ("_cache", "n_visible", "slots", "visible")

    def __init__(
        self,
        cache: KVCache,
        slots: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int32],
        seqs: npt.NDArray[np.int32],
    ) -> None:
        self._cache, self.slots = cache, slots
        self.visible = np.empty((len(slots), cache.cells.top), dtype=np.bool_)
        self.n_visible = cache.cells.mask(positions, seqs, self.visible)

    def tensors(self) -> CellTensors:
        """The same for layers that compute with torch."""
        return CellTensors(self._cache, self)


class Step:
    """A change that is taken back, exactly, if the block under ``with`` raises anything at all."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._old_keys: list[torch.Tensor] = []
        self._shifted: torch.Tensor | None = None

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
        if self._shifted is not None:
            for keys, old in zip(self._cache.keys.layers, self._old_keys, strict=False):
                keys.index_copy_(0, self._shifted, old)
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
            if needed <= cache.free:
                return
        raise CacheFull(needed, free, cache.free - free)

    def apply_shifts(self) -> None:
        """Turn the stored keys of shifted cells to their new positions, in float32."""
        cache = self._cache
        if not cache.cells.has_shift:
            return
        cells = cache.cells.shifted()
        deltas = torch.from_numpy(cache.cells.shifts[cells].astype(np.int64)).to(cache.device)
        self._shifted = torch.from_numpy(cells).to(cache.device)
        if cache.rotate is not None:
            for layer, keys in enumerate(cache.keys.layers):
                old = keys.index_select(0, self._shifted)
                turned = cache.rotate(layer, old.float(), deltas).to(keys.dtype)
                self._old_keys.append(old)
                keys.index_copy_(0, self._shifted, turned)
        cache.cells.clear_shifts()

    def place(
        self,
        positions: npt.NDArray[np.int32],
        seqs: npt.NDArray[np.int32],
        owners: npt.NDArray[np.uint64],
    ) -> MicroBatch:
        """Give T tokens cells: ``seqs`` is each one's first sequence, ``owners`` all, as bits."""
        cells = self._cache.cells
        return MicroBatch(self._cache, cells.place(positions, owners), positions, seqs)
