"""The feed-forward part of a layer, as its architecture has it."""

from __future__ import annotations

from aleator.models.layers.geglu import GeGLU
from aleator.models.layers.layer import LayerWeights
from aleator.models.layers.swiglu import SwiGLU


def feed_forward(weights: LayerWeights) -> SwiGLU | GeGLU:
    """A layer's gated feed-forward part; GELU is rounded as llama.cpp's where the file is GGUF.

    Raises:
        FileFormatError: a tensor is missing, of another shape, or not finite.
    """
    n_embd, n_ff = weights.config.n_embd, weights.config.n_ff[weights.layer]
    gate_up = weights.matrix(["ffn_gate", "ffn_up"], n_embd, [n_ff, n_ff])
    down = weights.matrix(["ffn_down"], n_ff, [n_embd])
    if weights.architecture.activation == "silu":
        return SwiGLU(gate_up, down, n_ff)
    return GeGLU(gate_up, down, n_ff, rounded=weights.kind == "gguf")
