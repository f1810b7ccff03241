"""Products with stored weights for layers in PyTorch on the CPU: native code computes them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import aleator._native as _native
from aleator.core.threads import MAX_THREADS, pool
from aleator.models.layers.stored import StoredWeight


def torch_pool() -> _native.ThreadPool:
    """A pool of as many threads as PyTorch uses."""
    return pool(min(torch.get_num_threads(), MAX_THREADS))


class StoredLinear:
    """One or more stored matrices with the same input, their outputs side by side."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[StoredWeight]) -> None:
        self.parts = list(parts)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, n_in] -> [T, sum of n_outs]."""
        made = [_product(part, x) for part in self.parts]
        return made[0] if len(made) == 1 else torch.cat(made, -1)


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


def _product(weight: StoredWeight, x: torch.Tensor) -> torch.Tensor:
    """[T, n_in] -> [T, n_out], float32."""
    y = torch.empty(len(x), weight.n_out)
    _native.linear(torch_pool(), weight.matrix, x.contiguous().numpy(), y.numpy())
    return y
