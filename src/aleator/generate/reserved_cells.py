"""Cache cells that are reserved for several decode steps, with positions kept on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from aleator.cache.cache import Cache
from aleator.cache.rows.rows import RotateKeys
from aleator.cache.storage.tensors import tensor_layers, torch_device
from aleator.core.arrays import Int64s

BUCKET = 256
"""The number of cells that attention reads is padded to a multiple of this, so that few shapes occur."""

_NEVER = 2**31 - 1


class ReservedCells:
    """Cells reserved for a run of steps, as layers see them: each row writes the next of its own.

    Shapes depend only on the number of rows and the padded number of cells; what changes between steps is in
    tensors.  Replaces :class:`aleator.cache.rows.tensors.CellTensors`.

    Attributes:
        cell_ids: int64 [B], where each row's key and value go in this step.
        count: int64 [B], how many of its sequence's cells each row sees in this step.
        source: int64 [B], each row itself, or the row that it repeats because it has nothing to do.
    """

    blind = causal = False

    def __init__(self, cache: Cache, batch: int, rotate: RotateKeys) -> None:
        self._cache, device = cache, torch_device(cache.devices[0])
        self._rotate = rotate
        self._keys, self._values = (
            tensor_layers(cache.keys.parts),
            tensor_layers(cache.values.parts),
        )
        self.raw = cache.k_storage == "raw"
        most = -(-cache.size // BUCKET) * BUCKET
        self._all_rows = torch.zeros(most, dtype=torch.int64, device=device)
        self._all_ranks = torch.zeros(batch, most, dtype=torch.int64, device=device)
        self._all_distances = torch.zeros(most, dtype=torch.int64, device=device)
        self.cell_ids = torch.zeros(batch, dtype=torch.int64, device=device)
        self.count = torch.zeros(batch, dtype=torch.int64, device=device)
        self.source = torch.zeros(batch, dtype=torch.int64, device=device)
        self.n, self._shifted = 0, False
        self._mask: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, bool]:
        """What a captured graph depends on."""
        return self.n, self._shifted

    def take(self, lists: Sequence[Int64s], source: Sequence[int]) -> None:
        """Let row i attend to a prefix of ``lists[source[i]]``: cells in the order of their positions."""
        device, cache = self.cell_ids.device, self._cache
        cells = lists[0] if len(lists) == 1 else np.unique(np.concatenate(lists))
        n = len(cells)
        self.n = -(-n // BUCKET) * BUCKET
        rows = np.full(self.n, cells[0])
        rows[:n] = cells
        ranks = np.full((len(lists), self.n), _NEVER)
        for rank, own in zip(ranks, lists, strict=True):
            at = np.arange(n) if len(lists) == 1 else np.searchsorted(cells, own)
            rank[at] = np.arange(len(own))
        moved = cache.cells.positions[rows].astype(np.int64) - cache.key_positions[rows]
        self._shifted = bool(moved.any())
        self._all_rows[: self.n] = torch.from_numpy(rows).to(device)
        self._all_distances[: self.n] = torch.from_numpy(moved).to(device)
        self._all_ranks[:, : self.n] = torch.from_numpy(ranks[list(source)]).to(device)
        self.source.copy_(torch.tensor(source))

    def clear(self, cells: Int64s) -> None:
        """Store zeros, since cells are read with weight 0 before they are written, and 0 * NaN is NaN."""
        at = torch.from_numpy(cells).to(self.cell_ids.device)
        for layer in (*self._keys, *self._values):
            shape = len(cells), layer.heads, layer.dim
            layer.store(at, torch.zeros(shape, dtype=torch.float32, device=at.device))

    def begin(self, cell_ids: torch.Tensor, count: torch.Tensor) -> None:
        """Go to the next step: the cell that each row writes, and how many it sees, int64 [B]."""
        self.cell_ids.copy_(cell_ids)
        self.count.copy_(count)
        hidden = self._all_ranks[:, : self.n] >= self.count.unsqueeze(1)
        mask = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
        self._mask = mask.masked_fill_(hidden, -torch.inf)

    def tensors(self) -> Any:  # what layers use of CellTensors
        """The layers' view: this object itself, which has all tensors of a micro-batch."""
        return self

    def device(self, layer: int) -> torch.device:
        """Device of a layer's keys and values."""
        return torch_device(self._cache.devices[layer])

    def mask(self, layer: int) -> torch.Tensor | None:
        """float32 [B, n], 0 or -inf."""
        return self._mask

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store keys [B, G, D] and values [B, G, Dv]; a row that repeats another stores the same bits."""
        self._keys[layer].store(self.cell_ids, k.index_select(0, self.source))
        self._values[layer].store(self.cell_ids, v.index_select(0, self.source))

    def read(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys [n, G, D] and values [n, G, Dv]."""
        rows = self._all_rows[: self.n]
        k = self._keys[layer].load(rows)
        if self._shifted:
            k = k.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
            k = self._rotate(layer, k, self._all_distances[: self.n])
        return k, self._values[layer].load(rows)
