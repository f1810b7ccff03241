"""Attention of a micro-batch's queries over the cells, with grouped key-value heads."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from aleator.cache.rows.tensors import CellTensors


def attend(
    q: torch.Tensor,
    layer: int,
    cells: CellTensors,
    scale: float,
    fused: bool,
    softcap: float = 0.0,
    added: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    values_in_keys: int = 0,
) -> torch.Tensor:
    """softmax(q k^T * scale) v, in float32 whatever the cache's types.

    Args:
        q: queries, float32 [T, H, D].
        layer: index of the layer in the cells.
        cells: the keys and values, and which of them a query sees.
        scale: what scores are multiplied by.
        fused: for more than one query use torch's fused kernel, which never holds the T x n scores; one query
            is fastest as two plain products.
        softcap: scores s become softcap * tanh(s / softcap); 0: unchanged.
        added: then added to the scores, [H, T, n]; None: nothing.
        sinks: a score of each head without a value, float32 [H]; None: there are none.
        values_in_keys: how many first channels of the keys are the values; 0: the cache has values.

    Returns:
        float32 [T, H * Dv]; 0 for a query that sees no cell.
    """
    k, v = cells.read(layer)
    k, v = k.to(q.dtype), v.to(q.dtype)
    if values_in_keys:
        v = k[..., :values_in_keys]
    t, heads, dim = q.shape
    kv_heads, n = k.shape[1], k.shape[0]
    if n == 0:
        return q.new_zeros(t, heads * v.shape[2])
    mask = cells.mask(layer)
    groups = heads // kv_heads
    if fused and t > 1 and not softcap and added is None and sinks is None:
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1).unsqueeze(0),
            k.transpose(0, 1).unsqueeze(0),
            v.transpose(0, 1).unsqueeze(0),
            attn_mask=mask,
            is_causal=cells.causal,
            scale=scale,
            enable_gqa=groups > 1,
        )
        out = out.squeeze(0).transpose(0, 1).reshape(t, -1)
        return _zero_blind(out, mask) if cells.blind and mask is not None else out
    # Queries of one key-value head are the rows of one matrix: [G, groups * T, D] x [G, D, n].
    rows = q.view(t, kv_heads, groups, dim).permute(1, 2, 0, 3).reshape(kv_heads, groups * t, dim)
    scores = torch.bmm(rows, k.permute(1, 2, 0)).mul_(scale)
    if softcap:
        scores = scores.div_(softcap).tanh_().mul_(softcap)
    if added is not None:
        scores.view(kv_heads, groups, t, n).add_(added.view(kv_heads, groups, t, n))
    if mask is not None or cells.causal:
        if mask is None:
            mask = torch.full((t, n), -torch.inf, dtype=torch.float32, device=q.device).triu_(1)
        scores.view(kv_heads, groups, t, n).add_(mask)
    if sinks is not None:
        last = sinks.to(scores).view(kv_heads, groups, 1).expand(-1, -1, t)
        scores = torch.cat((scores, last.reshape(kv_heads, groups * t, 1)), -1)
    out = torch.bmm(scores.softmax(-1)[..., :n], v.transpose(0, 1))
    if t > 1:
        out = out.view(kv_heads, groups, t, -1).permute(2, 0, 1, 3)
    out = out.reshape(t, -1)
    return _zero_blind(out, mask) if cells.blind and mask is not None else out


def _zero_blind(out: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return out.masked_fill_((mask == -torch.inf).all(1, keepdim=True), 0.0)
