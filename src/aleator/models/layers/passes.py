"""What layers share in one micro-batch, on torch tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar

import torch

from aleator.cache.pools.hybrid import HybridBatch, parts_of
from aleator.cache.pools.recurrent_rows import RecurrentBatch
from aleator.cache.rows.tensors import CellTensors
from aleator.models.layers.rotary import Rotary

X = TypeVar("X")


class Cells(Protocol):
    """Where a micro-batch's keys and values are stored, and what its tokens see."""

    def tensors(self) -> CellTensors:
        """The cells as tensors."""
        ...


class Pass:
    """What layers share in one micro-batch.

    Attributes:
        positions: positions of the tokens, [T].
        fused: whether attention may use torch's fused kernel.
        query_scales: factors of growing queries, float32 [T]; None: queries do not grow.
        embeddings: of the tokens for each layer, [T, layers, width]; None: there are none.
    """

    def __init__(
        self,
        positions: torch.Tensor,
        highest: int,
        cells: Cells | HybridBatch | RecurrentBatch,
        fused: bool,
        query_scales: torch.Tensor | None = None,
    ) -> None:
        """Share a micro-batch of T tokens with positions up to ``highest``.

        ``query_scales`` [T] multiply growing queries.
        """
        self.query_scales = query_scales
        self.embeddings: torch.Tensor | None = None
        self.positions, self._highest, self.fused = positions, highest, fused
        base, window, self._states = parts_of(cells)
        self._cells: dict[bool, Cells | None] = {False: base, True: window}
        self._made: dict[Hashable, Any] = {}

    def moved(self, device: torch.device, dtype: torch.dtype) -> Pass:
        """A copy for layers on another device, or of another type; cells and states are shared."""
        made = copy.copy(self)
        made.positions, made._made = self.positions.to(device), {}
        if self.query_scales is not None:
            made.query_scales = self.query_scales.to(device)
        if self.embeddings is not None:
            made.embeddings = self.embeddings.to(device, dtype)
        return made

    def once(self, key: Hashable, make: Callable[[], X]) -> X:
        """The result of ``make``, called once for all layers on a device."""
        if key not in self._made:
            self._made[key] = make()
        made: X = self._made[key]
        return made

    def angles(self, rotary: Rotary) -> torch.Tensor:
        """The rotations of the micro-batch's positions."""
        return self.once(rotary, lambda: rotary.angles(self.positions, self._highest))

    def distances(self, windowed: bool) -> torch.Tensor:
        """Positions of the read cells minus those of the tokens, float32 [T, n]."""
        held = self.tensors(windowed).positions().to(self.positions)
        return (held[None, :] - self.positions[:, None]).float()

    @property
    def states(self) -> RecurrentBatch:
        """The states of layers that keep one."""
        if self._states is None:
            raise TypeError("the cache of this micro-batch has no states")
        return self._states

    def cells(self, windowed: bool) -> Cells:
        """The cells of layers that see everything, or of those with a window."""
        cells = self._cells[windowed]
        if cells is None:
            raise TypeError(f"the cache has no cells of layers with windowed={windowed}")
        return cells

    def tensors(self, windowed: bool) -> CellTensors:
        """The cells as tensors, made once."""
        return self.once(("cells", windowed), self.cells(windowed).tensors)

    def raw(self, windowed: bool) -> bool:
        """Whether keys are stored as at position 0."""
        return self.tensors(windowed).raw
