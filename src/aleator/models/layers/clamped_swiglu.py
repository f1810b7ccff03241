"""gpt-oss's gated feed-forward layer: SwiGLU with both halves clamped, a steeper gate, and 1 added to up.

See https://openai.com/index/introducing-gpt-oss.
"""

from __future__ import annotations

import torch

from aleator.models.layers.linear import Linear

LIMIT = 7.0
SLOPE = 1.702


class ClampedSwiGLU:
    """Gate, product and output.

    Attributes:
        gate_up: gives gate and up side by side, [T, 2 * n_ff].
        down: back to the width.
        n_ff: width of gate and up.
    """

    __slots__ = ("down", "gate_up", "n_ff")

    def __init__(self, gate_up: Linear, down: Linear, n_ff: int) -> None:
        self.gate_up, self.down, self.n_ff = gate_up, down, n_ff

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, n_embd] -> [T, n_embd]."""
        both = self.gate_up(x)
        gate = both[:, : self.n_ff].clamp(max=LIMIT)
        up = both[:, self.n_ff :].clamp(-LIMIT, LIMIT)
        return self.down(gate * torch.sigmoid(SLOPE * gate) * (up + 1.0))
