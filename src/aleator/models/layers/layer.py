"""A layer of a decoder, and the tensors that it is made from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch

from aleator.models.layers.layer_source import LayerSource, Matrix
from aleator.models.layers.linear import Embedding, Linear, as_stored, linear, read_rows, tensor
from aleator.models.layers.operands import Activations
from aleator.models.layers.ops import TORCH, TorchOps
from aleator.models.layers.passes import Pass
from aleator.models.layers.stored import stored_weight

if TYPE_CHECKING:
    from aleator.models.weights import Weights


class Layer(Protocol):
    """One layer of a decoder."""

    def __call__(self, x: Activations, batch: Pass, rows: torch.Tensor | None) -> Activations:
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
        device: the device of the tensors.
        dtype: their type there.
        ops: the operations of layers made from them.
    """

    ops: TorchOps = TORCH

    def __init__(
        self, weights: Weights, layer: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__(weights, layer)
        self.device, self.dtype = device, dtype

    def values(self, name: str, *shape: int, exact: bool = False) -> torch.Tensor:
        name = self.prefix + name
        self.weights.expect(name, shape)
        return tensor(self.weights, name, torch.float32 if exact else self.dtype).to(self.device)

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
        if as_stored(self.device, self.dtype):
            return partial(read_rows, stored_weight(self.weights, self.prefix + name, *shape))
        return partial(self.values(f"{name}.weight", *shape).index_select, 0)

    def product(self, matrices: Sequence[Matrix]) -> Linear:
        return linear(self.weights, matrices, self.device, self.dtype)
