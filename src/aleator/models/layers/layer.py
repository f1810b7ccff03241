"""What a layer of a decoder is, and what it is made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from aleator.models.layers.expert_tensors import expert_tensors, stacked
from aleator.models.layers.layer_source import LayerSource
from aleator.models.layers.linear import (
    Embedding,
    Linear,
    embedding,
    expert_linear,
    linear,
    parameter,
)
from aleator.models.layers.ops import TORCH, TorchOps
from aleator.models.layers.passes import Pass

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


class LayerWeights(LayerSource[Linear, torch.Tensor]):
    """The tensors of one layer in PyTorch.

    Attributes:
        device: where they go.
        dtype: their type there.
        ops: what layers made from them compute with.
    """

    ops: TorchOps = TORCH

    def __init__(
        self, weights: Weights, layer: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__(weights, layer)
        self.device, self.dtype = device, dtype

    def values(self, name: str, *shape: int, exact: bool = False) -> torch.Tensor:
        kind = torch.float32 if exact else self.dtype
        return parameter(self.weights, self.prefix + name, shape, self.device, kind)

    def flat(self, name: str, n: int) -> torch.Tensor:
        return self.values(name, *self.expect_size(name, n), exact=True).reshape(-1)

    def with_bias(self, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return torch.cat((weight, torch.zeros_like(weight) if bias is None else bias), -1)

    def scaled(self, values: torch.Tensor, by: float) -> torch.Tensor:
        return values * by

    def ones(self, n: int) -> torch.Tensor:
        return torch.ones(n, device=self.device, dtype=self.dtype)

    def embedding(self, name: str, shape: tuple[int, int]) -> Embedding:
        """The embedding ``name``, of ``shape`` [n_vocab, n_embd]."""
        return embedding(self.weights, shape, self.device, self.dtype, name)

    def matrix(
        self, names: Sequence[str], n_in: int, n_outs: Sequence[int], *, bias: bool = False
    ) -> Linear:
        """See :class:`LayerSource`; one product for all, see :func:`~aleator.models.layers.linear.linear`."""
        listed = [self.prefix + name for name in names]
        return linear(self.weights, listed, n_in, n_outs, self.device, self.dtype, bias=bias)

    def stacked(self, name: str, n: int, n_in: int, n_out: int) -> list[Linear]:
        parts = stacked(self, name, n, n_in, n_out)
        return [expert_linear([(part, None)], self.device, self.dtype) for part in parts]

    def experts(
        self, names: Sequence[str], n_in: int, n_outs: Sequence[int], *, bias: bool = False
    ) -> list[Linear]:
        """See :class:`LayerSource`; those of one expert are one product."""
        found = expert_tensors(self, names, n_in, n_outs, bias)
        return [expert_linear(matrices, self.device, self.dtype) for matrices in found]
