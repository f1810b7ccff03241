"""The gated feed-forward layer (Shazeer 2020, arXiv:2002.05202): down(silu(gate(x)) * up(x))."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from aleator.models.layers.linear import Linear


class SwiGLU:
    """Gate, product and output.

    Attributes:
        gate_up: gives gate and up side by side, [T, 2 * n_ff], so that both are one product.
        down: back to the width.
        n_ff: width of gate and up.
    """

    __slots__ = ("down", "gate_up", "n_ff")

    def __init__(self, gate_up: Linear, down: Linear, n_ff: int) -> None:
        self.gate_up, self.down, self.n_ff = gate_up, down, n_ff

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, n_embd] -> [T, n_embd]."""
        both = self.gate_up(x)
        return self.down(F.silu(both[:, : self.n_ff]).mul_(both[:, self.n_ff :]))
