"""Weights used in their stored type on the CPU, straight from the file's memory map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from aleator import _native
from aleator.core.threads import MAX_THREADS, pool
from aleator.models.layers.parameters import parameter

if TYPE_CHECKING:
    from aleator.models.weights import Weights
_CPU = torch.device("cpu")


def torch_pool() -> _native.ThreadPool:
    """A pool of as many threads as torch uses."""
    return pool(min(torch.get_num_threads(), MAX_THREADS))


class StoredWeight:
    """One matrix [n_out, n_in], and its bias if it has one.

    Attributes:
        matrix: the native form.
        bias: float32 [n_out], or None.
        n_out: width of the output.
        n_in: width of the input.

    Raises:
        FileFormatError: the tensor is not there, not of this shape, or not finite; names it.
    """

    def __init__(self, weights: Weights, name: str, n_out: int, n_in: int, bias: bool) -> None:
        """Use a tensor of the file where it is.

        Args:
            weights: the model file.
            name: of the tensor, without ".weight".
            n_out: width of the output.
            n_in: width of the input.
            bias: whether ``name.bias`` must exist; one that exists is used in any case.

        Raises:
            FileFormatError: it is missing, of another shape, or not finite; names the tensor.
        """
        self.n_out, self.n_in = n_out, n_in
        tensor = f"{name}.weight"
        weights.expect(tensor, (n_out, n_in))
        stored = weights.stored(tensor)
        weights.check_finite(tensor)
        self.bias = (
            parameter(weights, f"{name}.bias", (n_out,), _CPU, torch.float32)
            if bias or f"{name}.bias" in weights
            else None
        )
        self.matrix = _native.StoredMatrix(
            stored.data, stored.type, n_out, n_in, None if self.bias is None else self.bias.numpy()
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, n_in] -> [T, n_out], float32."""
        y = torch.empty(len(x), self.n_out)
        _native.linear(torch_pool(), self.matrix, x.contiguous().numpy(), y.numpy())
        return y


class StoredLinear:
    """One or more stored matrices with the same input, their outputs side by side."""

    __slots__ = ("parts",)

    def __init__(
        self, weights: Weights, names: Sequence[str], n_in: int, n_outs: Sequence[int], bias: bool
    ) -> None:
        self.parts = [
            StoredWeight(weights, name, n_out, n_in, bias)
            for name, n_out in zip(names, n_outs, strict=True)
        ]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, n_in] -> [T, sum of n_outs]."""
        if len(self.parts) == 1:
            return self.parts[0](x)
        return torch.cat([part(x) for part in self.parts], -1)


class StoredEmbedding:
    """Rows of a stored matrix [n_vocab, n_embd]."""

    __slots__ = ("weight",)

    def __init__(self, weight: StoredWeight) -> None:
        self.weight = weight

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> float32 [T, n_embd]; the ids have been checked."""
        y = torch.empty(len(ids), self.weight.n_in)
        _native.read_rows(torch_pool(), self.weight.matrix, ids.numpy(), y.numpy())
        return y


def identity(n: int) -> StoredLinear:
    """A matrix that gives its input, bit for bit: products with 0 and sums with them change nothing."""
    made = StoredLinear.__new__(StoredLinear)
    part = StoredWeight.__new__(StoredWeight)
    part.n_out = part.n_in = n
    part.bias = None
    data = np.eye(n, dtype=np.float32).reshape(-1).view(np.uint8)
    part.matrix = _native.StoredMatrix(data, "F32", n, n, None)
    made.parts = [part]
    return made
