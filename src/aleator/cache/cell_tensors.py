"""The cells of a micro-batch as torch layers use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from aleator.cache.kv_cache import KVCache
    from aleator.cache.step import MicroBatch


class CellTensors:
    """The cells of a micro-batch as torch layers use them.

    Attributes:
        device: where keys and values are.
        n: how many cells are read.
        mask: float32 [T, n], 0 where a query may see a cell, else -inf; None if all see all.
        causal: without a mask, query t sees exactly the first t + 1 cells.

    """

    __slots__ = ("_keys", "_rows", "_slots", "_start", "_values", "causal", "device", "mask", "n")

    def __init__(self, cache: KVCache, batch: MicroBatch) -> None:
        book, visible = cache.cells, batch.visible
        self._keys, self._values = cache.keys.layers, cache.values.layers
        self.device = cache.device
        t, top = visible.shape
        # find() goes round the ring once, so an unbroken run is one whose ends are t - 1 apart.
        self._start = int(batch.slots[0])
        contiguous = int(batch.slots[-1]) - self._start == t - 1
        self._slots = None if contiguous else torch.from_numpy(batch.slots).to(self.device)
        self.n = top
        self._rows: torch.Tensor | None = None
        if book.used < top:
            # Free cells may hold anything, even NaN, and 0 * NaN is NaN: read only the used ones.
            used = np.flatnonzero(book.positions[:top] >= 0)
            self._rows = torch.from_numpy(used).to(self.device)
            self.n = len(used)
            visible = visible[:, used]
        self.mask: torch.Tensor | None = None
        self.causal = False
        if batch.n_visible < t * self.n:
            triangle = t == self.n and batch.n_visible == t * (t + 1) // 2
            self.causal = triangle and bool((visible == np.tri(t, dtype=np.bool_)).all())
            if not self.causal:
                hidden = torch.from_numpy(~visible).to(self.device)
                self.mask = torch.zeros(hidden.shape, device=self.device)
                self.mask.masked_fill_(hidden, -torch.inf)

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store keys [T, G, D] and values [T, G, Dv] of the micro-batch's tokens."""
        keys, values = self._keys[layer], self._values[layer]
        if self._slots is None:
            end = self._start + k.shape[0]
            keys[self._start : end] = k
            values[self._start : end] = v
        else:
            keys.index_copy_(0, self._slots, k.to(keys))
            values.index_copy_(0, self._slots, v.to(values))

    def read(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys [n, G, D] and values [n, G, Dv] in their stored types; views where possible."""
        if self._rows is None:
            return self._keys[layer][: self.n], self._values[layer][: self.n]
        return (
            self._keys[layer].index_select(0, self._rows),
            self._values[layer].index_select(0, self._rows),
        )
