"""Tensors of a model file as a layer's parameters, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from aleator.core.errors import FileFormatError

if TYPE_CHECKING:
    from aleator.models.weights import Weights


def parameter(
    weights: Weights,
    name: str,
    shape: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The named tensor, of the given shape and finite throughout; raises FileFormatError."""
    if name not in weights:
        raise FileFormatError(weights.path, f"tensor {name} is missing", field=name)
    tensor = weights.tensor(name, dtype=dtype)
    if tuple(tensor.shape) != shape:
        raise FileFormatError(
            weights.path,
            f"tensor {name} has shape {list(tensor.shape)}, the model needs {list(shape)}",
            field=name,
        )
    # aminmax carries NaN through, so one pass finds NaN and both infinities.
    low, high = torch.aminmax(tensor)
    if not (torch.isfinite(low) and torch.isfinite(high)):
        raise FileFormatError(weights.path, f"tensor {name} holds NaN or infinity", field=name)
    return tensor.to(device)
