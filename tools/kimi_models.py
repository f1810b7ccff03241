"""The layers of kimi-linear, for hybrid_models.py: delta nets with a decay for each channel, and attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import gguf
import numpy as np
from model_file import Array, Draws


@dataclass(frozen=True)
class KimiShape:
    """Compressed keys: their numbers, those of the key that all heads share, sizes of key and value heads."""

    rank: int
    shared: int
    key: int
    value: int


def tensors(
    shape: KimiShape, kind: str, at: str, sizes: tuple[int, int, int, int], draws: Draws
) -> Iterator[tuple[str, Array]]:
    """A layer's tensors besides norms and feed-forward; ``kind`` is "s" or "a".

    ``sizes`` are the width, the heads, the size of a delta net's heads, and the convolution's width.
    """
    matrix, vector = draws.matrix, draws.vector
    e, heads, dim, d_conv = sizes
    wide = heads * dim
    if kind == "a":
        plain = shape.key - shape.shared
        yield at + "attn_q.weight", matrix(heads * shape.key, e, gain=1.5)
        yield at + "attn_kv_a_mqa.weight", matrix(shape.rank + shape.shared, e, gain=1.5)
        yield at + "attn_kv_a_norm.weight", vector(shape.rank)
        yield at + "attn_k_b.weight", matrix(heads, shape.rank, plain)
        yield at + "attn_v_b.weight", matrix(heads, shape.value, shape.rank)
        yield at + "attn_output.weight", matrix(e, heads * shape.value)
        return
    for part in "qkv":
        yield f"{at}attn_{part}.weight", matrix(wide, e, gain=1.5)
        conv = matrix(wide, d_conv, gain=2.0)
        yield f"{at}ssm_conv1d_{part}.weight", conv.reshape(1, wide, 1, d_conv)
    yield at + "ssm_f_a.weight", matrix(dim, e)
    yield at + "ssm_f_b.weight", matrix(wide, dim)
    yield at + "ssm_g_a.weight", matrix(dim, e)
    yield at + "ssm_g_b.weight", matrix(wide, dim)
    yield at + "ssm_beta.weight", matrix(heads, e)
    yield at + "ssm_dt.bias", vector(wide, around=-1.0)
    yield at + "ssm_a", -np.exp(vector(heads, around=-1.0))[:, None]
    yield at + "ssm_norm.weight", vector(dim)
    yield at + "attn_output.weight", matrix(e, wide)


def write_metadata(w: gguf.GGUFWriter, shape: KimiShape, dim: int) -> None:
    """The fields of attention and of the delta nets; ``dim`` is the size of the delta nets' heads."""
    w.add_kv_lora_rank(shape.rank)
    w.add_rope_dimension_count(shape.shared)
    w.add_key_length(shape.rank + shape.shared)
    w.add_value_length(shape.rank)
    w.add_key_length_mla(shape.key)
    w.add_value_length_mla(shape.value)
    w.add_uint32("kimi-linear.kda.head_dim", dim)
