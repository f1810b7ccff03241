"""The feed-forward part of a layer in PyTorch, as its architecture has it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from aleator.models.layers.clamped_swiglu import ClampedSwiGLU
from aleator.models.layers.experts import Experts
from aleator.models.layers.geglu import GeGLU
from aleator.models.layers.head_parts import FeedForwardAlone
from aleator.models.layers.layer import LayerWeights, Pass
from aleator.models.layers.linear import Linear
from aleator.models.layers.norms import norm
from aleator.models.layers.parts import FeedForward, Mixture
from aleator.models.layers.swiglu import SwiGLU
from aleator.models.layers.ungated import Ungated

Parts = FeedForward[Linear] | Mixture[Linear, torch.Tensor]


def feed_forward(parts: Parts) -> Callable[[torch.Tensor], torch.Tensor]:
    """What takes [T, n_embd] to [T, n_embd]: one part, or a mixture of several."""
    return single(parts) if isinstance(parts, FeedForward) else mixture(parts)


def mixture(parts: Mixture[Linear, torch.Tensor]) -> Experts:
    """The experts of a mixture."""
    return Experts(
        parts,
        [single(each) for each in parts.experts],
        single(parts.shared) if parts.shared else None,
    )


class Following:
    """The feed-forward part after a layer's state, on the normalised running sum and added to it."""

    def __init__(
        self, weights: LayerWeights, weight: torch.Tensor | None, parts: Parts | None
    ) -> None:
        """Use what was read.

        Args:
            weights: the file's tensors of the layer.
            weight: of the norm before it; None: there is no such part.
            parts: its tensors.
        """
        config = weights.config
        self.norm = norm("rms", weight, config.rms_eps)
        self.ffn = None if parts is None else feed_forward(parts)
        self.residual_scale = config.residual_scale

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, n_embd] -> [T, n_embd]."""
        return x if self.ffn is None else x + self.ffn(self.norm(x)) * self.residual_scale


class FeedForwardLayer:
    """A layer of nothing but a feed-forward part."""

    def __init__(self, weights: LayerWeights) -> None:
        """Read the layer's tensors.

        Raises:
            FileFormatError: a tensor is missing, of another shape, or not finite.
        """
        parts = FeedForwardAlone(weights)
        self.part = Following(weights, parts.norm, parts.ffn)

    def __call__(self, x: torch.Tensor, batch: Pass, rows: torch.Tensor | None) -> torch.Tensor:
        """Compute a micro-batch, see :class:`Layer`."""
        return self.part(x if rows is None else x.index_select(0, rows))


def single(parts: FeedForward[Linear]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A feed-forward part; GELU is rounded as llama.cpp's where the file is GGUF."""
    if not parts.gated:
        return Ungated(parts.gate_up, parts.down, parts.gate)
    if parts.gate == "silu":
        return SwiGLU(parts.gate_up, parts.down, parts.n_ff)
    if parts.gate == "silu_clamped":
        return ClampedSwiGLU(parts.gate_up, parts.down, parts.n_ff)
    return GeGLU(parts.gate_up, parts.down, parts.n_ff, parts.gate)
