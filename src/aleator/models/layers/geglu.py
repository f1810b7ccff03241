"""The gated feed-forward layer with GELU (Shazeer 2020, arXiv:2002.05202): down(gelu(gate(x)) * up(x))."""

from __future__ import annotations

import torch

from aleator.models.layers.activations import activation
from aleator.models.layers.linear import Linear


class GeGLU:
    """Gate, product and output.

    Attributes:
        gate_up: gives gate and up side by side, [T, 2 * n_ff].
        down: back to the width.
        n_ff: width of gate and up.
        kind: which GELU, see :func:`~aleator.models.layers.activations.activation`.
    """

    __slots__ = ("down", "gate_up", "kind", "n_ff")

    def __init__(self, gate_up: Linear, down: Linear, n_ff: int, kind: str) -> None:
        self.gate_up, self.down, self.n_ff, self.kind = gate_up, down, n_ff, kind

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, n_embd] -> [T, n_embd]."""
        both = self.gate_up(x)
        return self.down(activation(self.kind, both[:, : self.n_ff]).mul_(both[:, self.n_ff :]))
