"""The gated feed-forward layer with GELU (Shazeer 2020, arXiv:2002.05202): down(gelu(gate(x)) * up(x))."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from aleator.models.layers.linear import Linear


class GeGLU:
    """Gate, product and output; GELU is its approximation by tanh.

    Attributes:
        gate_up: gives gate and up side by side, [T, 2 * n_ff].
        down: back to the width.
        n_ff: width of gate and up.
        rounded: as llama.cpp computes it, from a table of float16 values (ggml_vec_geglu_f32): arguments and
            results are rounded to float16, except beyond -10 and 10, where GELU is 0 or the identity.
    """

    __slots__ = ("down", "gate_up", "n_ff", "rounded")

    def __init__(self, gate_up: Linear, down: Linear, n_ff: int, rounded: bool) -> None:
        self.gate_up, self.down, self.n_ff, self.rounded = gate_up, down, n_ff, rounded

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, n_embd] -> [T, n_embd]."""
        both = self.gate_up(x)
        gate = both[:, : self.n_ff]
        if self.rounded:
            inside = F.gelu(gate.half().float(), approximate="tanh").half().to(gate)
            gate = torch.where(gate.abs() < 10.0, inside, gate.clamp_min(0.0))
        else:
            gate = F.gelu(gate, approximate="tanh")
        return self.down(gate.mul_(both[:, self.n_ff :]))
