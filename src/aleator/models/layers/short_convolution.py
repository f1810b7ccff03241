"""A layer with a short convolution between two products, in PyTorch."""

from __future__ import annotations

import torch

from aleator.models.layers.convolution import convolve
from aleator.models.layers.feed_forward import Following
from aleator.models.layers.layer import LayerWeights, Pass
from aleator.models.layers.norms import norm
from aleator.models.layers.recurrent_parts import ShortConvolution


class ShortConvolutionLayer:
    """``output(C * conv(B * x))`` added to the layer's input, and a feed-forward part."""

    def __init__(self, weights: LayerWeights, index: int) -> None:
        parts = ShortConvolution(weights, index)
        self.layer, self.parts = index, parts
        self.norm = norm("rms", parts.norm, weights.config.rms_eps)
        self.following = Following(weights, parts.ffn_norm, parts.ffn)

    def __call__(self, x: torch.Tensor, batch: Pass, rows: torch.Tensor | None) -> torch.Tensor:
        """Compute a micro-batch, see :class:`Layer`; leaves the states of all T tokens."""
        parts = self.parts
        b, c, values = parts.project(self.norm(x)).float().chunk(3, dim=1)
        mixed = c * convolve(
            b * values, parts.conv_weight, parts.conv_bias, batch.states, self.layer
        )
        if rows is not None:
            x, mixed = x.index_select(0, rows), mixed.index_select(0, rows)
        return self.following(x + parts.output(mixed.to(x)))
