"""The feed-forward part of a layer in PyTorch, as its architecture has it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from aleator.models.layers.geglu import GeGLU
from aleator.models.layers.linear import Linear
from aleator.models.layers.parts import FeedForward
from aleator.models.layers.swiglu import SwiGLU
from aleator.models.layers.ungated import Ungated


def feed_forward(parts: FeedForward[Linear]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A layer's feed-forward part; GELU is rounded as llama.cpp's where the file is GGUF."""
    if not parts.gated:
        return Ungated(parts.gate_up, parts.down, parts.gate)
    if parts.gate == "silu":
        return SwiGLU(parts.gate_up, parts.down, parts.n_ff)
    return GeGLU(parts.gate_up, parts.down, parts.n_ff, parts.gate)
