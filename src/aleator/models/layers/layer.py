"""What a layer of a decoder is, what it is made from, and what layers share during a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from aleator.cache.pools.hybrid_batch import HybridBatch
from aleator.cache.pools.recurrent_batch import RecurrentBatch
from aleator.cache.pools.recurrent_rows import RecurrentShape
from aleator.cache.rows.tensors import CellTensors
from aleator.models.layers.linear import Linear, linear
from aleator.models.layers.parameters import parameter
from aleator.models.layers.rms_norm import RMSNorm
from aleator.models.layers.rotary import Rotary

if TYPE_CHECKING:
    from aleator.models.architecture import Architecture
    from aleator.models.config import ModelConfig
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


class RecurrentLayer(Layer, Protocol):
    """A layer that keeps a state of each sequence."""

    @property
    def shape(self) -> RecurrentShape:
        """What it keeps."""
        ...


class Cells(Protocol):
    """Where a micro-batch's keys and values are stored, and what its tokens see."""

    def tensors(self) -> CellTensors:
        """As tensors."""
        ...


class LayerWeights:
    """The tensors of one layer, read and checked when they are asked for.

    Names are without "blk.N.".

    Attributes:
        config: the model's dimensions.
        architecture: how its layers are made.
        layer: the layer's number.
        device: where its tensors go.
        dtype: their type there.
        kind: of the file, "gguf" or "safetensors".
    """

    def __init__(
        self, weights: Weights, layer: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._weights, self._prefix = weights, f"blk.{layer}."
        self.config: ModelConfig = weights.config
        self.architecture: Architecture = weights.architecture
        self.layer, self.device, self.dtype = layer, device, dtype
        self.kind = weights.kind

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._weights

    def values(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The tensor ``name`` of this shape, as ``dtype``, or as :attr:`dtype`.

        Raises:
            FileFormatError: it is missing, of another shape, or not finite.
        """
        kind = self.dtype if dtype is None else dtype
        return parameter(self._weights, self._prefix + name, shape, self.device, kind)

    def norm(self, name: str, size: int | None = None, dtype: torch.dtype | None = None) -> RMSNorm:
        """The RMS normalisation with the weight ``name.weight`` of ``size``, the width by default."""
        size = self.config.n_embd if size is None else size
        return RMSNorm(self.values(f"{name}.weight", size, dtype=dtype), self.config.rms_eps)

    def matrix(
        self, names: Sequence[str], n_in: int, n_outs: Sequence[int], *, bias: bool = False
    ) -> Linear:
        """One product for the matrices ``name.weight``, see :func:`~aleator.models.layers.linear.linear`."""
        listed = [self._prefix + name for name in names]
        return linear(self._weights, listed, n_in, n_outs, self.device, self.dtype, bias=bias)


class Pass:
    """What layers share while one micro-batch goes through them.

    Attributes:
        fused: whether attention may use torch's fused kernel.
    """

    def __init__(
        self,
        positions: torch.Tensor,
        highest: int,
        cells: Cells | HybridBatch | RecurrentBatch,
        fused: bool,
    ) -> None:
        """Share a micro-batch of T tokens.

        Args:
            positions: int64 or int32 [T], on the decoder's device.
            highest: no position is higher.
            cells: what the cache gave the micro-batch.
            fused: whether attention may use torch's fused kernel.
        """
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

    def angles(self, rotary: Rotary) -> torch.Tensor:
        """The rotations of the micro-batch's positions."""
        if id(rotary) not in self._angles:
            self._angles[id(rotary)] = rotary.angles(self._positions, self._highest)
        return self._angles[id(rotary)]

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
