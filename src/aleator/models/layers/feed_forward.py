"""The feed-forward part of a layer in PyTorch, as its architecture has it."""

from __future__ import annotations

from aleator.models.layers.geglu import GeGLU
from aleator.models.layers.linear import Linear
from aleator.models.layers.parts import FeedForward
from aleator.models.layers.swiglu import SwiGLU


def feed_forward(parts: FeedForward[Linear]) -> SwiGLU | GeGLU:
    """A layer's gated feed-forward part; GELU is rounded as llama.cpp's where the file is GGUF."""
    if parts.gate == "silu":
        return SwiGLU(parts.gate_up, parts.down, parts.n_ff)
    return GeGLU(parts.gate_up, parts.down, parts.n_ff, rounded=parts.gate == "gelu_rounded")
