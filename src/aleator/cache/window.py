"""Attention of layers that see only a window of positions."""

from __future__ import annotations

import torch

from aleator.cache.cell_tensors import CellTensors
from aleator.cache.step import MicroBatch


class WindowTensors(CellTensors):
    """The cells of a micro-batch as layers with a window of ``size`` positions use them.

    A token at position p sees what it would see without a window, from position p - size + 1 on.
    """

    __slots__ = ()

    def __init__(self, batch: MicroBatch, size: int) -> None:
        cache = batch._cache
        super().__init__(cache, batch)
        top = batch.visible.shape[1]
        held = torch.from_numpy(cache.cells.positions[:top].copy()).to(self.device)
        if self._rows is not None:
            held = held.index_select(0, self._rows)
        asked = torch.from_numpy(cache.cells.positions[batch.slots]).to(self.device)
        far = asked[:, None] - held[None, :] >= size
        if not bool(far.any()):
            return
        if self.mask is None:
            self.mask = torch.zeros(far.shape, device=self.device)
            if self.causal:
                self.mask.fill_(-torch.inf).triu_(1)
                self.causal = False
        else:
            self.mask = self.mask.clone()
        self.mask.masked_fill_(far, -torch.inf)
