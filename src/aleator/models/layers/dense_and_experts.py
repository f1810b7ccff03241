"""A dense feed-forward part and a mixture of experts side by side, in PyTorch (gemma4's 26B-A4B)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from aleator.models.layers.rms_norm import RMSNorm

if TYPE_CHECKING:
    from aleator.models.layers.experts import Experts
    from aleator.models.layers.parts import BesideNorms

Part = Callable[[torch.Tensor], torch.Tensor]
"""[T, n_embd] -> [T, n_embd]."""


class DenseAndExperts:
    """Both take the running sum, each with a norm of its own, and so does the router."""

    def __init__(
        self, dense: Part, experts: Experts, norms: BesideNorms[torch.Tensor], eps: float
    ) -> None:
        self.dense, self.experts = dense, experts
        self.router_norm, self.expert_norm = RMSNorm(norms.router, eps), RMSNorm(norms.expert, eps)
        self.dense_post_norm = RMSNorm(norms.dense_post, eps)
        self.expert_post_norm = RMSNorm(norms.expert_post, eps)

    def __call__(self, x: torch.Tensor, normed: torch.Tensor) -> torch.Tensor:
        """What both give for ``x`` [T, n_embd]; ``normed``: as the dense part takes it."""
        dense = self.dense_post_norm(self.dense(normed))
        logits = self.experts.router(self.router_norm(x))
        given = self.experts.mixed(self.expert_norm(x), logits)
        return dense + self.expert_post_norm(given)
