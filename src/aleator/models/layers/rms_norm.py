"""Root-mean-square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467)."""

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
