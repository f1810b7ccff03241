"""Matrix products with weights: every layer in PyTorch asks here for them.

Another way of computing one (on weights in their stored type, memory-mapped) is another class with
the same ``__call__``, chosen in :func:`linear`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

import aleator._native as _native
from aleator.core.errors import ParameterError
from aleator.core.threads import MAX_THREADS, pool
from aleator.models.layers.stored import StoredWeight, stored_weight

if TYPE_CHECKING:
    from aleator.models.layers.expert_tensors import ExpertMatrix
    from aleator.models.weights import Weights

Linear = Callable[[torch.Tensor], torch.Tensor]
"""What takes ``x`` [T, n_in] to x times the weights, plus the bias if there is one: [T, n_out]."""
Embedding = Callable[[torch.Tensor], torch.Tensor]
"""What takes ids int64 [T] to rows of the token embedding, [T, n_embd]."""
DTYPES = {
    "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16,
    "exact": torch.float32,
}  # fmt: skip
"""Types to compute in, by name."""

_STORED = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def tensor(weights: Weights, name: str, dtype: torch.dtype) -> torch.Tensor:
    """A copy of a tensor on the CPU, dequantised."""
    weights.check_finite(name)
    stored = weights.stored(name)
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


def parameter(
    weights: Weights,
    name: str,
    shape: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype,
) -> torch.Tensor:
    """A tensor of the file, which must be of this shape, on ``device`` in ``dtype``."""
    weights.expect(name, shape)
    return tensor(weights, name, dtype).to(device)


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


class DenseLinear:
    """Weights as one tensor in the decoder's type."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, n_in] -> [T, n_out]."""
        return F.linear(x, self.weight, self.bias)


class DenseEmbedding:
    """The embedding as one tensor [n_vocab, n_embd]."""

    __slots__ = ("weight",)

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """[T] -> [T, n_embd]."""
        return self.weight.index_select(0, ids)


def embedding(
    weights: Weights,
    shape: tuple[int, int],
    device: torch.device,
    dtype: torch.dtype,
    name: str,
) -> Embedding:
    """The embedding ``name``, of ``shape`` [n_vocab, n_embd]."""
    if _stored(device, dtype):
        return StoredEmbedding(stored_weight(weights, name, *shape, bias=False))
    return DenseEmbedding(parameter(weights, f"{name}.weight", shape, device, dtype))


def _stored(device: torch.device, dtype: torch.dtype) -> bool:
    return device.type == "cpu" and dtype == torch.float32


def linear(
    weights: Weights,
    names: Sequence[str],
    n_in: int,
    n_outs: Sequence[int],
    device: torch.device,
    dtype: torch.dtype,
    *,
    bias: bool = False,
) -> Linear:
    """One product for one or more matrices with the same input, their outputs side by side.

    ``bias``: see :meth:`~aleator.models.layers.layer_source.LayerSource.matrix`.
    """
    if _stored(device, dtype):
        return StoredLinear(
            [
                stored_weight(weights, name, n_out, n_in, bias)
                for name, n_out in zip(names, n_outs, strict=True)
            ]
        )
    matrices, biases = [], []
    has_bias = bias or any(f"{name}.bias" in weights for name in names)
    for name, n_out in zip(names, n_outs, strict=True):
        matrices.append(parameter(weights, f"{name}.weight", (n_out, n_in), device, dtype))
        if bias or f"{name}.bias" in weights:
            biases.append(parameter(weights, f"{name}.bias", (n_out,), device, dtype))
        elif has_bias:
            biases.append(torch.zeros(n_out, device=device, dtype=dtype))
    if len(names) == 1:
        return DenseLinear(matrices[0], biases[0] if biases else None)
    return DenseLinear(torch.cat(matrices), torch.cat(biases) if biases else None)


def expert_linear(
    matrices: Sequence[ExpertMatrix], device: torch.device, dtype: torch.dtype
) -> Linear:
    """One product for the matrices of an expert with the same input, their outputs side by side."""
    if _stored(device, dtype):
        return StoredLinear([StoredWeight(matrix) for matrix in matrices])
    rows = np.concatenate([stored.floats() for stored, _ in matrices])
    own = [bias for _, bias in matrices if bias is not None]
    bias = torch.from_numpy(np.concatenate(own)).to(device, dtype) if own else None
    return DenseLinear(torch.from_numpy(rows).to(device, dtype), bias)
