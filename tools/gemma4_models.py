"""How gemma4's small random models differ, for dense_models.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import gguf
import numpy as np
from model_file import Array, Draws

NORMS = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")


@dataclass(frozen=True)
class Gemma4Shape:
    """Layers of two kinds.

    Attributes:
        windows: whether a layer has a window.
        n_kv: KV heads of each layer.
        n_ff: width of each layer's feed-forward part.
        window_dim: size of heads in layers with a window.
        dim: size of heads in the other layers.
        n_rotated: pairs of these heads that rotate.
        keys_as_values: these layers have no ``attn_v``.
        scales: whether layers have ``layer_output_scale``.
        experts: number of experts beside every layer's dense part, and their width, if there are any.
        joint: the experts' gate and up are one tensor.
        per_layer: numbers per token and layer.
        shared: how many last layers attend to the keys of earlier ones.
    """

    windows: tuple[bool, ...]
    n_kv: tuple[int, ...]
    n_ff: tuple[int, ...]
    window_dim: int
    dim: int
    n_rotated: int
    keys_as_values: bool = False
    scales: bool = True
    experts: tuple[int, int] = (0, 0)
    joint: bool = True
    per_layer: int = 0
    shared: int = 0


def tensors(
    shape: Gemma4Shape, n_vocab: int, n_embd: int, n_heads: int, draws: Draws
) -> Iterator[tuple[str, Array]]:
    """The divisors of the rotary frequencies and the layers' tensors by their GGUF names."""
    matrix, vector = draws.matrix, draws.vector
    ramp = np.arange(shape.dim // 2) < shape.n_rotated
    yield "rope_freqs.weight", np.where(ramp, 1.0, 1e30).astype(np.float32)
    n_layers, width = len(shape.windows), shape.per_layer
    if width:
        yield "per_layer_token_embd.weight", matrix(n_vocab, n_layers * width, gain=3.0)
        yield "per_layer_model_proj.weight", matrix(n_layers * width, n_embd, gain=4.0)
        yield "per_layer_proj_norm.weight", vector(width)
    for layer, window in enumerate(shape.windows):
        at, dim = f"blk.{layer}.", shape.window_dim if window else shape.dim
        q, kv = n_heads * dim, shape.n_kv[layer] * dim
        for name in NORMS:
            yield f"{at}{name}.weight", vector(n_embd)
        # Heads are normalised and scores not scaled, so queries are kept short.
        yield at + "attn_q_norm.weight", vector(dim, around=0.5)
        stores = layer < n_layers - shape.shared
        if stores:
            yield at + "attn_k_norm.weight", vector(dim, around=0.7)
        yield at + "attn_q.weight", matrix(q, n_embd)
        if stores:
            yield at + "attn_k.weight", matrix(kv, n_embd)
            if window or not shape.keys_as_values:
                yield at + "attn_v.weight", matrix(kv, n_embd)
        yield at + "attn_output.weight", matrix(n_embd, q)
        yield at + "ffn_gate.weight", matrix(shape.n_ff[layer], n_embd)
        yield at + "ffn_up.weight", matrix(shape.n_ff[layer], n_embd)
        yield at + "ffn_down.weight", matrix(n_embd, shape.n_ff[layer])
        yield from _experts(at, shape, n_embd, draws)
        if width:
            yield at + "inp_gate.weight", matrix(width, n_embd)
            yield at + "proj.weight", matrix(n_embd, width)
            yield at + "post_norm.weight", vector(n_embd)
        if shape.scales:
            yield at + "layer_output_scale.weight", vector(1, around=0.8)


def _experts(at: str, shape: Gemma4Shape, n_embd: int, draws: Draws) -> Iterator[tuple[str, Array]]:
    matrix, vector = draws.matrix, draws.vector
    n, wide = shape.experts
    if n == 0:
        return
    yield at + "ffn_gate_inp.weight", matrix(n, n_embd, gain=2.0)
    yield at + "ffn_gate_inp.scale", vector(n_embd, around=8.0)
    for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
        yield f"{at}{name}.weight", vector(n_embd)
    both = [matrix(2 * wide, n_embd) for _ in range(n)]
    if shape.joint:
        yield at + "ffn_gate_up_exps.weight", np.stack(both)
    else:
        yield at + "ffn_gate_exps.weight", np.stack([each[:wide] for each in both])
        yield at + "ffn_up_exps.weight", np.stack([each[wide:] for each in both])
    yield at + "ffn_down_exps.weight", np.stack([matrix(n_embd, wide) for _ in range(n)])
    if shape.joint:
        yield at + "ffn_down_exps.scale", vector(n)


def write_metadata(w: gguf.GGUFWriter, shape: Gemma4Shape) -> None:
    """The fields of gemma4 alone."""
    w.add_key_length_swa(shape.window_dim)
    w.add_value_length_swa(shape.window_dim)
    w.add_rope_dimension_count_swa(shape.window_dim)
    w.add_sliding_window_pattern(list(shape.windows))
    w.add_embedding_length_per_layer_input(shape.per_layer)
    w.add_shared_kv_layers(shape.shared)
    if shape.experts[0]:
        w.add_expert_count(shape.experts[0])
        w.add_expert_feed_forward_length(shape.experts[1])
