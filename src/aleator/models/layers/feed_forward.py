"""The feed-forward part of a layer in PyTorch, as its architecture has it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from aleator.models.layers.clamped_swiglu import ClampedSwiGLU
from aleator.models.layers.experts import Experts
from aleator.models.layers.geglu import GeGLU
from aleator.models.layers.linear import Linear
from aleator.models.layers.parts import FeedForward, Mixture
from aleator.models.layers.swiglu import SwiGLU
from aleator.models.layers.ungated import Ungated

Parts = FeedForward[Linear] | Mixture[Linear, torch.Tensor]


def feed_forward(parts: Parts) -> Callable[[torch.Tensor], torch.Tensor]:
    """What takes [T, n_embd] to [T, n_embd]: one part, or a mixture of several."""
    if isinstance(parts, FeedForward):
        return single(parts)
    return Experts(
        parts,
        [single(each) for each in parts.experts],
        single(parts.shared) if parts.shared else None,
    )


def single(parts: FeedForward[Linear]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A feed-forward part; GELU is rounded as llama.cpp's where the file is GGUF."""
    if not parts.gated:
        return Ungated(parts.gate_up, parts.down, parts.gate)
    if parts.gate == "silu":
        return SwiGLU(parts.gate_up, parts.down, parts.n_ff)
    if parts.gate == "silu_clamped":
        return ClampedSwiGLU(parts.gate_up, parts.down, parts.n_ff)
    return GeGLU(parts.gate_up, parts.down, parts.n_ff, parts.gate)
