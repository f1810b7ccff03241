"""Tensors of a model file as a layer's parameters, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from aleator.models.weights import Weights


def parameter(
    weights: Weights,
    name: str,
    shape: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype,
) -> torch.Tensor:
    """A tensor of the file.

    Args:
        weights: the model file.
        name: of the tensor.
        shape: what it must be.
        device: where it goes.
        dtype: its type there.

    Raises:
        FileFormatError: it is missing, of another shape, or not finite.
    """
    weights.expect(name, shape)
    return weights.tensor(name, dtype).to(device)
