"""The cells of a micro-batch as torch layers use them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from aleator._native import Cells
from aleator.cache.rows.rows import Rows, Seen, lags, unbroken
from aleator.cache.storage.tensors import Index, tensor_layers, torch_device
from aleator.core.arrays import Int32s, Int64s


class View(NamedTuple):
    """The cells of a micro-batch on one device.

    Attributes:
        cell_ids: the cells of the tokens' keys and values.
        rows: the cells that are read: only those that some token sees, since a free cell may hold NaN, and
            0 * NaN is NaN.
        mask: float32 [T, n], 0 where a token sees a cell, else -inf; None if all see all, or causal.
        distances: int64 [n], how far the stored keys lag behind their cells; None: nowhere.
    """

    cell_ids: Index
    rows: Index
    mask: torch.Tensor | None
    distances: torch.Tensor | None


class CellTensors:
    """The cells of a micro-batch as torch layers use them.

    Attributes:
        n: number of cells read.
        causal: without a mask, query t sees exactly the first t + 1 cells.
        blind: some token sees no cell; its attention is 0.
        raw: keys are stored as at position 0.
    """

    def __init__(self, cells: Cells, rows: Rows, cell_ids: Int64s, seen: Seen) -> None:
        self._cells, self._rows, self._cell_ids, self._seen = cells, rows, cell_ids, seen
        # One sequence is read in order; several are read as one set, shared cells once.
        index = seen.cells if len(seen.start) == 2 else np.unique(seen.cells)
        self._index, self.n = index.astype(np.int64), len(index)
        t, counts = len(cell_ids), seen.counts
        self.blind = not counts.all()
        triangle = len(seen.start) == 2 and t == self.n
        self.causal = triangle and bool((counts == np.arange(1, t + 1)).all())
        self.raw = rows.k_storage == "raw"
        self._keys, self._values = tensor_layers(rows.keys.parts), tensor_layers(rows.values.parts)
        self._views: dict[torch.device, View] = {}

    def device(self, layer: int) -> torch.device:
        """The device of a layer's keys and values."""
        return torch_device(self._rows.devices[layer])

    def mask(self, layer: int) -> torch.Tensor | None:
        """The mask on the layer's device, float32 [T, n] of 0 and -inf; None if all see all, or causal."""
        return self._view(layer).mask

    def positions(self) -> torch.Tensor:
        """Positions of the cells that are read, int32 [n], on the host."""
        return torch.from_numpy(self._cells.positions[self._index])

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store keys [T, G, D] and values [T, G, Dv] of the micro-batch's tokens."""
        cell_ids = self._view(layer).cell_ids
        self._keys[layer].store(cell_ids, k)
        self._values[layer].store(cell_ids, v)

    def read(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys [n, G, D] and values [n, G, Dv], in their stored types and as views if possible."""
        view = self._view(layer)
        k = self._keys[layer].load(view.rows)
        if view.distances is not None and self._rows.rotate is not None:
            k = k.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
            k = self._rows.rotate(layer, k, view.distances)
        return k, self._values[layer].load(view.rows)

    def _view(self, layer: int) -> View:
        device = self.device(layer)
        view = self._views.get(device)
        if view is None:
            view = self._views[device] = self._make(device)
        return view

    def _make(self, device: torch.device) -> View:
        index, distances = self._index, None
        if self._seen.deltas is not None:
            distances = torch.from_numpy(lags(self._cells, self._rows, index)).to(device)
        return View(
            _index(self._cell_ids, device), _index(index, device), self._mask(device), distances
        )

    def _mask(self, device: torch.device) -> torch.Tensor | None:
        """Make the mask on the device from a few numbers per token and per cell."""
        seen, t, n = self._seen, len(self._cell_ids), self.n
        if self.causal or (len(seen.start) == 2 and bool((seen.counts == n).all())):
            return None
        counts = torch.from_numpy(seen.counts).to(device)
        if len(seen.start) == 2:
            visible = torch.arange(n, device=device) < counts[:, None]
        else:
            # rank[i, j]: index of cell j in list i; past every count if it is not there.
            rank = np.full((len(seen.start) - 1, n), np.iinfo(np.int64).max)
            for i, (a, b) in enumerate(zip(seen.start[:-1], seen.start[1:], strict=True)):
                rank[i, np.searchsorted(self._index, seen.cells[a:b])] = np.arange(b - a)
            lists = torch.from_numpy(seen.list.astype(np.int64)).to(device)
            visible = torch.from_numpy(rank).to(device)[lists] < counts[:, None]
        mask = torch.zeros(t, n, dtype=torch.float32, device=device)
        return mask.masked_fill_(~visible, -torch.inf)


class WindowTensors(CellTensors):
    """The cells of a micro-batch as layers with a window use them with torch."""

    def __init__(
        self, cells: Cells, rows: Rows, cell_ids: Int64s, seen: Seen, lows: Int32s, sinks: int
    ) -> None:
        """Use the cells of T tokens; each sees positions from its entry in ``lows`` on, and sinks."""
        super().__init__(cells, rows, cell_ids, seen)
        held = torch.from_numpy(cells.positions[self._index])
        far = held[None, :] < torch.from_numpy(lows)[:, None]
        far &= held[None, :] >= sinks
        self._far = far if bool(far.any()) else None
        self._triangle = self.causal
        self.causal = self.causal and self._far is None

    def _mask(self, device: torch.device) -> torch.Tensor | None:
        mask = super()._mask(device)
        if self._far is None:
            return mask
        if mask is None:
            mask = torch.zeros(self._far.shape, dtype=torch.float32, device=device)
            if self._triangle:
                mask.fill_(-torch.inf).triu_(1)
        return mask.masked_fill_(self._far.to(device), -torch.inf)


def _index(cells: Int64s, device: torch.device) -> Index:
    return unbroken(cells) or torch.from_numpy(cells).to(device)
