"""Attention over compressed keys."""

from __future__ import annotations

import numpy as np

from aleator.core.records import dataclass
from decoder_numerics.blocks import Floats
from decoder_numerics.floats import adapted, attention, products, rms_norm, rotate


@dataclass(frozen=True)
class LatentTensors:
    """The float32 tensors of a layer.

    Attributes:
        query: [heads * head_dim, n_embd], or [q_rank, n_embd] where there is ``query_up``.
        compress: [rank + rotated, n_embd].
        norm: [rank].
        output: [n_embd, heads * dim_v].
        query_norm: [q_rank].
        query_up: [heads * head_dim, q_rank].
        expand: [heads * (plain + dim_v), rank]; None where the cache holds the compressed keys.
        key_up: [heads, rank, plain], where it does.
        value_up: [heads, dim_v, rank].
        low: A and B of each head's key_up and value_up that an adapter at scale 1 has, if it has any.
    """

    query: Floats
    compress: Floats
    norm: Floats
    output: Floats
    query_norm: Floats | None = None
    query_up: Floats | None = None
    expand: Floats | None = None
    key_up: Floats | None = None
    value_up: Floats | None = None
    low: tuple[list[tuple[Floats, Floats]], list[tuple[Floats, Floats]]] | None = None


def latent_attention(
    x: Floats, t: LatentTensors, angles: Floats, heads: int, plain: int, eps: float
) -> Floats:
    """What the attention of one sequence adds to the running sum, float32 [T, n_embd]; the cache is float32.

    Args:
        x: what the layer takes, normalised, [T, n_embd].
        t: the tensors.
        angles: cosines and sines of the tokens' positions, [T, pairs, 2]; neighbouring channels are a pair.
        heads: query heads.
        plain: channels of a head before the rotated ones.
        eps: of the norms.
    """
    n, rank, scale = len(x), len(t.norm), (t.compress.shape[0] - len(t.norm) + plain) ** -0.5
    q = products(t.query, x)
    if t.query_up is not None and t.query_norm is not None:
        q = products(t.query_up, rms_norm(q, t.query_norm, eps))
    q = q.reshape(n, heads, -1)
    low = products(t.compress, x)
    compressed = rms_norm(np.ascontiguousarray(low[:, :rank]), t.norm, eps)
    turned = rotate(low[:, rank:], angles, interleaved=True)
    mine = rotate(q[:, :, plain:], angles[:, None], interleaved=True)
    given = np.empty((n, heads, t.output.shape[1] // heads), np.float32)
    for h in range(heads):
        own = np.ascontiguousarray(q[:, h, :plain])
        keys, values = compressed, compressed
        if t.expand is not None:
            both = products(t.expand, compressed).reshape(n, heads, -1)[:, h]
            keys, values = both[:, :plain], np.ascontiguousarray(both[:, plain:])
        elif t.key_up is not None:
            own = _added(products(t.key_up[h], own), own, t, 0, h)
        queries = np.concatenate((own, mine[:, h]), 1)
        keys = np.concatenate((keys, turned), 1)
        for i in range(n):
            seen = attention(queries[i], keys[: i + 1], values[: i + 1], scale)[None]
            up = seen if t.value_up is None else products(t.value_up[h], seen)
            given[i, h] = _added(up, seen, t, 1, h)[0]
    return products(t.output, given.reshape(n, -1))


def _added(y: Floats, x: Floats, t: LatentTensors, side: int, head: int) -> Floats:
    return y if t.low is None else adapted(y, x, *t.low[side][head], 1.0)
