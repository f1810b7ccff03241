"""The cells of a micro-batch as torch layers use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from aleator.cache.storage.storage import Rows

if TYPE_CHECKING:
    from aleator.cache.kv_cache import KVCache
    from aleator.cache.step import MicroBatch


class View(NamedTuple):
    """What one device needs to know.

    Attributes:
        slots: where the tokens' keys and values go.
        rows: the cells that are read: those that any token sees, and no others, since a free cell may hold
            anything, even NaN, and 0 * NaN is NaN.
        mask: float32 [T, n], 0 where a token sees a cell, else -inf; None if all see all, or causal.
        distances: int64 [n], how far the stored keys are behind their cells; None: nowhere.

    """

    slots: Rows
    rows: Rows
    mask: torch.Tensor | None
    distances: torch.Tensor | None


class CellTensors:
    """The cells of a micro-batch as torch layers use them.

    Attributes:
        n: how many cells are read.
        causal: without a mask, query t sees exactly the first t + 1 cells.
        blind: some token sees no cell at all; its attention is 0.
        raw: keys are stored as at position 0.

    """

    __slots__ = ("_batch", "_cache", "_rows", "_views", "blind", "causal", "n", "raw")

    def __init__(self, cache: KVCache, batch: MicroBatch) -> None:
        self._cache, self._batch = cache, batch
        seen = batch.seen
        # One sequence is read in the order of its text; several as one set, cells they share once.
        rows = seen.cells if len(seen.start) == 2 else np.unique(seen.cells)
        self._rows, self.n = rows.astype(np.int64), len(rows)
        t, counts = len(batch.slots), seen.counts
        self.blind = not counts.all()
        triangle = len(seen.start) == 2 and t == self.n
        self.causal = triangle and bool((counts == np.arange(1, t + 1)).all())
        self.raw = cache.k_storage == "raw"
        self._views: dict[torch.device, View] = {}

    def device(self, layer: int) -> torch.device:
        """Where a layer's keys and values are."""
        return self._cache.devices[layer]

    def mask(self, layer: int) -> torch.Tensor | None:
        """float32 [T, n] on the layer's device, 0 or -inf; None if all see all, or causal."""
        return self._view(layer).mask

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store keys [T, G, D] and values [T, G, Dv] of the micro-batch's tokens."""
        slots = self._view(layer).slots
        self._cache.keys.write(layer, slots, k)
        self._cache.values.write(layer, slots, v)

    def read(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys [n, G, D] and values [n, G, Dv]; in their stored types, and views, where possible."""
        view = self._view(layer)
        k = self._cache.keys.read(layer, view.rows)
        if view.distances is not None and self._cache.rotate is not None:
            k = k.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
            k = self._cache.rotate(layer, k, view.distances)
        return k, self._cache.values.read(layer, view.rows)

    def _view(self, layer: int) -> View:
        device = self._cache.devices[layer]
        view = self._views.get(device)
        if view is None:
            view = self._views[device] = self._make(device)
        return view

    def _make(self, device: torch.device) -> View:
        cache, rows = self._cache, self._rows
        top = cache.cells.top
        distances = None
        if self._batch.seen.deltas is not None:
            moved = cache.cells.positions[:top][rows] - cache.key_positions[:top][rows]
            distances = torch.from_numpy(moved.astype(np.int64)).to(device)
        return View(
            _rows(self._batch.slots, device), _rows(rows, device), self._mask(device), distances
        )

    def _mask(self, device: torch.device) -> torch.Tensor | None:
        """Made on the device, from a few numbers per token and per cell."""
        seen, t, n = self._batch.seen, len(self._batch.slots), self.n
        if self.causal or (len(seen.start) == 2 and bool((seen.counts == n).all())):
            return None
        counts = torch.from_numpy(seen.counts).to(device)
        if len(seen.start) == 2:
            visible = torch.arange(n, device=device) < counts[:, None]
        else:
            # rank[i, j]: which of list i's cells j is, counted from 0; past every count if none.
            rank = np.full((len(seen.start) - 1, n), np.iinfo(np.int64).max)
            for i, (a, b) in enumerate(zip(seen.start[:-1], seen.start[1:], strict=True)):
                rank[i, np.searchsorted(self._rows, seen.cells[a:b])] = np.arange(b - a)
            lists = torch.from_numpy(seen.list.astype(np.int64)).to(device)
            visible = torch.from_numpy(rank).to(device)[lists] < counts[:, None]
        mask = torch.zeros(t, n, device=device)
        return mask.masked_fill_(~visible, -torch.inf)


def _rows(cells: npt.NDArray[np.int64], device: torch.device) -> Rows:
    """An unbroken ascending run as a slice, which is read without a copy."""
    n = len(cells)
    if n and cells[-1] - cells[0] == n - 1 and (n < 3 or bool((np.diff(cells) == 1).all())):
        return slice(int(cells[0]), int(cells[0]) + n)
    return torch.from_numpy(cells).to(device)
