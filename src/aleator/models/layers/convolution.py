"""A convolution over time of each channel by itself, in PyTorch."""

from __future__ import annotations

import torch

from aleator.cache.pools.recurrent_rows import RecurrentBatch
from aleator.cache.storage.tensors import as_tensor
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


def convolve(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    states: RecurrentBatch,
    layer: int,
) -> torch.Tensor:
    """Each channel's latest values, weighted, [T, channels]; keeps them for the tokens to come.

    x is float32 [T, channels], weight [channels, width], oldest first, bias [channels].
    """
    kept, width = as_tensor(states.conv[layer]), weight.shape[1]
    out = torch.empty_like(x)
    for run in states.runs:
        tokens = torch.tensor(run.tokens, device=x.device)
        fresh = run.source < 0
        before = x.new_zeros(width - 1, x.shape[1]) if fresh else kept[run.source].T
        values = torch.cat((before, x.index_select(0, tokens)))
        t = len(run.tokens)
        sums = sum(values[k : k + t] * weight[:, k] for k in range(width))
        out[tokens] = sums if bias is None else sums + bias
        for index, row in run.stores:
            kept[row] = values[index + 1 : index + width].T
    return out
