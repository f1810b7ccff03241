"""Matrix products with weights, for every layer in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

import aleator._native as _native
from aleator.core.errors import ParameterError
from aleator.core.threads import MAX_THREADS, pool
from aleator.models.files.tensor_types import StoredTensor
from aleator.models.layers.layer_source import Matrix
from aleator.models.layers.stored import StoredWeight

if TYPE_CHECKING:
    from aleator.models.weights import Weights

Linear = Callable[[torch.Tensor], torch.Tensor]
"""``x`` [T, n_in] -> x times the weights, plus the bias if there is one: [T, n_out]."""
Embedding = Callable[[torch.Tensor], torch.Tensor]
"""Ids int64 [T] -> rows of the token embedding, [T, n_embd]."""
DTYPES = {
    "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16,
    "exact": torch.float32,
}  # fmt: skip
"""Types to compute in, by name."""

_STORED = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def tensor(weights: Weights, name: str, dtype: torch.dtype) -> torch.Tensor:
    """A copy of a tensor on the CPU, dequantised."""
    weights.check_finite(name)
    return _converted(weights, name, weights.stored(name), dtype)


def _converted(
    weights: Weights, name: str, stored: StoredTensor, dtype: torch.dtype
) -> torch.Tensor:
    """A tensor of the file, or a part of it, as :func:`tensor` gives it."""
    if stored.type in _STORED:
        made = torch.empty(stored.shape, dtype=_STORED[stored.type])
        made.view(-1).view(torch.uint8).numpy()[:] = stored.data
        made = made.to(dtype)
    else:
        made = torch.empty(stored.shape, dtype=dtype)
        rows = made.view(-1, stored.shape[-1])
        for first, part in stored.pieces():
            rows[first : first + len(part)] = torch.from_numpy(part)
    if dtype == torch.float16 and not bool(made.isfinite().all()):
        raise ParameterError(
            "dtype",
            f"{weights.path}: the tensor {name!r} has numbers beyond float16's range "
            "(65504); use dtype bfloat16 or float32",
        )
    return made


def torch_pool() -> _native.ThreadPool:
    """A pool with as many threads as PyTorch uses."""
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


def read_rows(weight: StoredWeight, ids: torch.Tensor) -> torch.Tensor:
    """Rows of a stored matrix [n_vocab, n_embd] by int64 [T], which have been checked: float32 [T, n_embd]."""
    y = torch.empty(len(ids), weight.n_in, dtype=torch.float32, device="cpu")
    _native.read_rows(torch_pool(), weight.matrix, ids.numpy(), y.numpy())
    return y


def _product(weight: StoredWeight, x: torch.Tensor) -> torch.Tensor:
    """[T, n_in] -> [T, n_out], float32."""
    y = torch.empty(len(x), weight.n_out, dtype=torch.float32, device="cpu")
    _native.linear(torch_pool(), weight.matrix, x.contiguous().numpy(), y.numpy())
    return y


class DenseLinear:
    """Weights as one tensor in the decoder's type."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, n_in] -> [T, n_out]."""
        return F.linear(x, self.weight, self.bias)


def as_stored(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether weights are used in their stored type."""
    return device.type == "cpu" and dtype == torch.float32


def linear(
    weights: Weights, matrices: Sequence[Matrix], device: torch.device, dtype: torch.dtype
) -> Linear:
    """One product for matrices with the same input, their outputs side by side."""
    if as_stored(device, dtype):
        return StoredLinear([StoredWeight(each) for each in matrices])
    rows = [_converted(weights, each.name, each.stored, dtype) for each in matrices]
    bias = None
    if any(each.bias is not None for each in matrices):
        none = [np.zeros(len(each), np.float32) for each in rows]
        own = [zero if m.bias is None else m.bias for m, zero in zip(matrices, none, strict=True)]
        bias = torch.from_numpy(np.concatenate(own)).to(device, dtype)
    return DenseLinear((rows[0] if len(rows) == 1 else torch.cat(rows)).to(device), bias)
