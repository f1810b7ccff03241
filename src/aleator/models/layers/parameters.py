"""Tensors of a model file as parameters of layers in PyTorch, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from aleator.core.errors import ParameterError

if TYPE_CHECKING:
    from aleator.models.weights import Weights

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
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
