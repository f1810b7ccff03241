"""What a layer of a decoder is, what it is made from, and what layers share during a micro-batch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from aleator.cache.pools.hybrid import HybridBatch
from aleator.cache.pools.recurrent_rows import RecurrentBatch
from aleator.cache.rows.tensors import CellTensors
from aleator.models.layers.expert_tensors import expert_tensors, stacked
from aleator.models.layers.layer_source import LayerSource
from aleator.models.layers.linear import Linear, expert_linear, linear, parameter
from aleator.models.layers.rotary import Rotary

if TYPE_CHECKING:
    from aleator.models.weights import Weights


class Layer(Protocol):
    """One layer of a decoder."""

    def __call__(self, x: torch.Tensor, batch: Pass, rows: torch.Tensor | None) -> torch.Tensor:
        """Compute a micro-batch of T tokens.

        Args:
            x: [T, n_embd].
            batch: what layers share.
            rows: ascending indices of the tokens whose output is wanted; None: all.

        Returns:
            [T, n_embd], or [len(rows), n_embd].
        """
        ...


class Cells(Protocol):
    """Where a micro-batch's keys and values are stored, and what its tokens see."""

    def tensors(self) -> CellTensors:
        """The cells as tensors."""
        ...


class LayerWeights(LayerSource[Linear, torch.Tensor]):
    """The tensors of one layer in PyTorch.

    Attributes:
        device: where they go.
        dtype: their type there.
    """

    def __init__(
        self, weights: Weights, layer: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__(weights, layer)
        self.device, self.dtype = device, dtype

    def values(self, name: str, *shape: int, exact: bool = False) -> torch.Tensor:
        """See :class:`LayerSource`."""
        kind = torch.float32 if exact else self.dtype
        return parameter(self.weights, self.prefix + name, shape, self.device, kind)

    def flat(self, name: str, n: int) -> torch.Tensor:
        """See :class:`LayerSource`."""
        return self.values(name, *self.expect_size(name, n), exact=True).reshape(-1)

    def with_bias(self, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """See :class:`LayerSource`."""
        return torch.cat((weight, torch.zeros_like(weight) if bias is None else bias), -1)

    def scaled(self, values: torch.Tensor, by: float) -> torch.Tensor:
        """See :class:`LayerSource`."""
        return values * by

    def ones(self, n: int) -> torch.Tensor:
        """See :class:`LayerSource`."""
        return torch.ones(n, device=self.device, dtype=self.dtype)

    def matrix(
        self, names: Sequence[str], n_in: int, n_outs: Sequence[int], *, bias: bool = False
    ) -> Linear:
        """See :class:`LayerSource`; one product for all, see :func:`~aleator.models.layers.linear.linear`."""
        listed = [self.prefix + name for name in names]
        return linear(self.weights, listed, n_in, n_outs, self.device, self.dtype, bias=bias)

    def stacked(self, name: str, n: int, n_in: int, n_out: int) -> list[Linear]:
        """See :class:`LayerSource`."""
        parts = stacked(self, name, n, n_in, n_out)
        return [expert_linear([(part, None)], self.device, self.dtype) for part in parts]

    def experts(
        self, names: Sequence[str], n_in: int, n_outs: Sequence[int], *, bias: bool = False
    ) -> list[Linear]:
        """See :class:`LayerSource`; those of one expert are one product."""
        found = expert_tensors(self, names, n_in, n_outs, bias)
        return [expert_linear(matrices, self.device, self.dtype) for matrices in found]


class Pass:
    """What layers share while one micro-batch goes through them.

    Attributes:
        fused: whether attention may use torch's fused kernel.
        query_scales: what growing queries are multiplied by, float32 [T]; None: none grow.
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
        """Share a micro-batch of T tokens, no position of which is above ``highest``.

        ``query_scales`` [T] multiply growing queries.
        """
        self.query_scales = query_scales
        self.embeddings: torch.Tensor | None = None
        self._positions, self._highest, self.fused = positions, highest, fused
        self._cells: dict[bool, Cells | None] = {False: None, True: None}
        self._states: RecurrentBatch | None = None
        if isinstance(cells, HybridBatch):
            self._cells = {False: cells.base, True: cells.window}
            self._states = cells.recurrent
        elif isinstance(cells, RecurrentBatch):
            self._states = cells
        else:
            self._cells[False] = cells
        self._angles: dict[int, torch.Tensor] = {}
        self._tensors: dict[bool, CellTensors] = {}

    def moved(self, device: torch.device, dtype: torch.dtype) -> Pass:
        """A copy for layers on another device, or of another type; cells and states are shared."""
        made = copy.copy(self)
        made._positions, made._angles = self._positions.to(device), {}
        if self.query_scales is not None:
            made.query_scales = self.query_scales.to(device)
        if self.embeddings is not None:
            made.embeddings = self.embeddings.to(device, dtype)
        return made

    @property
    def positions(self) -> torch.Tensor:
        """Of the tokens, [T]."""
        return self._positions

    def angles(self, rotary: Rotary) -> torch.Tensor:
        """The rotations of the micro-batch's positions."""
        if id(rotary) not in self._angles:
            self._angles[id(rotary)] = rotary.angles(self._positions, self._highest)
        return self._angles[id(rotary)]

    def distances(self, windowed: bool) -> torch.Tensor:
        """Positions of the cells that are read less those of the tokens, float32 [T, n]."""
        held = self.tensors(windowed).positions().to(self._positions)
        return (held[None, :] - self._positions[:, None]).float()

    @property
    def states(self) -> RecurrentBatch:
        """The states of layers that keep one."""
        if self._states is None:
            raise TypeError("the cache of this micro-batch has no states")
        return self._states

    def tensors(self, windowed: bool) -> CellTensors:
        """The cells of layers that see everything, or of those with a window."""
        if windowed not in self._tensors:
            cells = self._cells[windowed]
            if cells is None:
                raise TypeError(f"the cache has no cells of layers with windowed={windowed}")
            self._tensors[windowed] = cells.tensors()
        return self._tensors[windowed]
