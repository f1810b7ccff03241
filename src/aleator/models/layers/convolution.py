"""A convolution over time of each channel by itself, in PyTorch."""

from __future__ import annotations

import torch

from aleator.cache.pools.recurrent_batch import RecurrentBatch
from aleator.cache.storage.tensors import as_tensor


def convolve(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    states: RecurrentBatch,
    layer: int,
) -> torch.Tensor:
    """Each channel's latest values, weighted; keeps them for the tokens to come.

    Args:
        x: values, float32 [T, channels].
        weight: [channels, width], oldest first.
        bias: [channels], or None.
        states: of the micro-batch.
        layer: its number among the layers that keep a state.

    Returns:
        [T, channels].
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
