"""The norms of architectures, in PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

Norm = Callable[[torch.Tensor], torch.Tensor]
"""[..., n] -> [..., n]."""


class RMSNorm:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension."""

    __slots__ = ("eps", "shape", "weight")

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight, self.eps = weight, eps
        self.shape = (weight.shape[-1],)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., n] -> [..., n]."""
        if self.weight.dim() == 1:
            return F.rms_norm(x, self.shape, self.weight, self.eps)
        return F.rms_norm(x, self.shape, None, self.eps) * self.weight


class LayerNorm:
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over the last dimension."""

    __slots__ = ("bias", "eps", "shape", "weight")

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        """Use ``weight`` [2 n], weights and then biases."""
        self.weight, self.bias = weight.chunk(2, -1)
        self.eps = eps
        self.shape = (self.weight.shape[-1],)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., n] -> [..., n]."""
        if self.weight.dim() == 1:
            return F.layer_norm(x, self.shape, self.weight, self.bias, self.eps)
        return F.layer_norm(x, self.shape, None, None, self.eps) * self.weight + self.bias


def norm(kind: str, weight: torch.Tensor | None, eps: float) -> Norm:
    """Normalise by ``kind`` ("rms" or "layer") with these weights; None: not at all."""
    if weight is None:
        return as_it_is
    return LayerNorm(weight, eps) if kind == "layer" else RMSNorm(weight, eps)


def as_it_is(x: torch.Tensor) -> torch.Tensor:
    """No norm."""
    return x
