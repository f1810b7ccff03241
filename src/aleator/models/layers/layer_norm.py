"""Layer normalisation (Ba et al. 2016, arXiv:1607.06450)."""

from __future__ import annotations

import torch
import torch.nn.functional as F


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
