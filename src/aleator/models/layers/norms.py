"""The normalisation that an architecture has, in PyTorch."""

from __future__ import annotations

import torch

from aleator.models.layers.layer_norm import LayerNorm
from aleator.models.layers.rms_norm import Norm, RMSNorm


def norm(kind: str, weight: torch.Tensor | None, eps: float) -> Norm:
    """Normalise by ``kind`` ("rms" or "layer") with these weights; None: not at all."""
    if weight is None:
        return _as_it_is
    return LayerNorm(weight, eps) if kind == "layer" else RMSNorm(weight, eps)


def _as_it_is(x: torch.Tensor) -> torch.Tensor:
    return x
