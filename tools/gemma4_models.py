"""What gemma4's small random models have otherwise, for dense_models.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import gguf
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Matrix = Callable[..., Array]
"""``matrix(n_out, n_in, gain)``: normal numbers that keep a row's size."""
Vector = Callable[..., Array]
"""``vector(n, around=1.0)``: numbers near ``around``."""
NORMS = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")


@dataclass(frozen=True)
class Gemma4Shape:
    """Layers of two kinds.

    Attributes:
        windows: whether a layer has a window.
        n_kv: its KV heads.
        n_ff: the width of its feed-forward part.
        window_dim: size of heads in layers with a window.
        dim: of those in the others.
        n_rotated: pairs of these that rotate.
        keys_as_values: these have no ``attn_v``.
        scales: whether layers have ``layer_output_scale``.
    """

    windows: tuple[bool, ...]
    n_kv: tuple[int, ...]
    n_ff: tuple[int, ...]
    window_dim: int
    dim: int
    n_rotated: int
    keys_as_values: bool = False
    scales: bool = True


def tensors(
    shape: Gemma4Shape, n_embd: int, n_heads: int, matrix: Matrix, vector: Vector
) -> Iterator[tuple[str, Array]]:
    """The divisors of the rotary frequencies and the layers' tensors by their GGUF names."""
    ramp = np.arange(shape.dim // 2) < shape.n_rotated
    yield "rope_freqs.weight", np.where(ramp, 1.0, 1e30).astype(np.float32)
    for layer, window in enumerate(shape.windows):
        at, dim = f"blk.{layer}.", shape.window_dim if window else shape.dim
        q, kv = n_heads * dim, shape.n_kv[layer] * dim
        for name in NORMS:
            yield f"{at}{name}.weight", vector(n_embd)
        # Heads are normalised and scores not scaled, so queries are kept short.
        yield at + "attn_q_norm.weight", vector(dim, around=0.5)
        yield at + "attn_k_norm.weight", vector(dim, around=0.7)
        yield at + "attn_q.weight", matrix(q, n_embd)
        yield at + "attn_k.weight", matrix(kv, n_embd)
        if window or not shape.keys_as_values:
            yield at + "attn_v.weight", matrix(kv, n_embd)
        yield at + "attn_output.weight", matrix(n_embd, q)
        yield at + "ffn_gate.weight", matrix(shape.n_ff[layer], n_embd)
        yield at + "ffn_up.weight", matrix(shape.n_ff[layer], n_embd)
        yield at + "ffn_down.weight", matrix(n_embd, shape.n_ff[layer])
        if shape.scales:
            yield at + "layer_output_scale.weight", vector(1, around=0.8)


def write_metadata(w: gguf.GGUFWriter, shape: Gemma4Shape) -> None:
    """The fields of gemma4 alone."""
    w.add_key_length_swa(shape.window_dim)
    w.add_value_length_swa(shape.window_dim)
    w.add_rope_dimension_count_swa(shape.window_dim)
    w.add_sliding_window_pattern(list(shape.windows))
    w.add_embedding_length_per_layer_input(0)
    w.add_shared_kv_layers(0)
