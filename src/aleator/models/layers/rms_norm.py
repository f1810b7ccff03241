"""Root-mean-square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467)."""

from __future__ import annotations

import torch
import torch.nn.functional as F


class RMSNorm:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension."""

    __slots__ = ("eps", "shape", "weight")

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight, self.eps = weight, eps
        self.shape = (weight.shape[0],)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., n] -> [..., n]."""
        return F.rms_norm(x, self.shape, self.weight, self.eps)
