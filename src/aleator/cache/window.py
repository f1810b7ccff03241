"""Attention of layers that see only a window of positions."""

from __future__ import annotations

import torch

from aleator.cache.cell_tensors import CellTensors
from aleator.cache.step import MicroBatch


class WindowTensors(CellTensors):
    """The cells of a micro-batch as layers with a window of ``size`` positions use them.

    A token at position p sees what it would see without a window, from position p - size + 1 on.
    """

    __slots__ = ("_far", "_triangle")

    def __init__(self, batch: MicroBatch, size: int) -> None:
        super().__init__(batch._cache, batch)
        held = torch.from_numpy(batch._cache.cells.positions[self._rows])
        far = torch.from_numpy(batch.positions)[:, None] - held[None, :] >= size
        self._far = far if bool(far.any()) else None
        self._triangle = self.causal
        self.causal = self.causal and self._far is None

    def _mask(self, device: torch.device) -> torch.Tensor | None:
        mask = super()._mask(device)
        if self._far is None:
            return mask
        if mask is None:
            mask = torch.zeros(self._far.shape, device=device)
            if self._triangle:
                mask.fill_(-torch.inf).triu_(1)
        return mask.masked_fill_(self._far.to(device), -torch.inf)
