"""Tensors that hold several matrices one after the other, as the matrices that they are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from aleator.models import delta_net
from aleator.models.architecture import Architecture
from aleator.models.config import LatentConfig, ModelConfig
from aleator.models.files.tensor_types import StoredTensor


def separated(
    tensors: Mapping[str, StoredTensor], architecture: Architecture, config: ModelConfig
) -> dict[str, StoredTensor]:
    """The tensors of a model with every fused one replaced by its parts.

    ``attn_kv_b`` of a model whose cache holds compressed keys holds each head's ``attn_k_b``, the other way
    round, and ``attn_v_b``; these are copies.  ``attn_qkv`` holds queries, keys and values; ``ffn_up`` of
    architectures with a fused gate holds the gate and then its own rows, and so does ``ffn_gate_up_shexp`` of a
    shared expert.  One that is not as long as its parts together stays as it is: whoever asks for the parts
    says that they are missing.
    """
    made = dict(tensors)
    for layer in range(config.n_layers):
        at = f"blk.{layer}."
        if config.delta is not None and config.keeps_state(layer):
            delta_net.separated(made, layer, config.delta)
        elif config.n_heads:
            dim, dim_v = config.head_dims(layer)
            q = config.n_heads[layer] * dim * (2 if architecture.attention_gate else 1)
            kv = config.n_kv_heads[layer]
            rows = {"attn_q": q, "attn_k": kv * dim, "attn_v": kv * dim_v}
            _separate(made, at + "attn_qkv", {at + name: n for name, n in rows.items()})
        if config.latent is not None and config.latent.compressed:
            _divide_latent(made, at, config.n_heads[layer], config.rope.dim, config.latent)
        if architecture.fused_gate and config.n_ff:
            n_ff = config.n_ff[layer]
            _separate(made, at + "ffn_up", {at + "ffn_gate": n_ff, at + "ffn_up": n_ff})
        if config.experts is not None and config.experts.n_ff_shared:
            n_ff = config.experts.n_ff_shared
            shared = {at + "ffn_gate_shexp": n_ff, at + "ffn_up_shexp": n_ff}
            _separate(made, at + "ffn_gate_up_shexp", shared)
        elif config.experts is None and config.n_ff:
            # Without experts the one that every token goes through is the feed-forward part.
            n_ff = config.n_ff[layer]
            _separate(made, at + "ffn_gate_up_shexp", {at + "ffn_gate": n_ff, at + "ffn_up": n_ff})
            if at + "ffn_gate.weight" in made and at + "ffn_down_shexp.weight" in made:
                made[at + "ffn_down.weight"] = made.pop(at + "ffn_down_shexp.weight")
    return made


def _divide_latent(
    tensors: dict[str, StoredTensor], at: str, heads: int, rotated: int, latent: LatentConfig
) -> None:
    plain, wide = latent.head_dim - rotated, latent.head_dim - rotated + latent.head_dim_v
    whole = tensors.get(at + "attn_kv_b.weight")
    if whole is None or whole.shape != (heads * wide, latent.rank) or whole.type not in _FLOATS:
        return
    del tensors[at + "attn_kv_b.weight"]
    parts = whole.data.reshape(heads, wide, latent.rank, -1)
    key, value = parts[:, :plain].transpose(0, 2, 1, 3), parts[:, plain:]
    for name, part in (("attn_k_b.weight", key), ("attn_v_b.weight", value)):
        data = np.ascontiguousarray(part).reshape(-1)
        tensors[at + name] = StoredTensor(whole.type, part.shape[:3], data)


_FLOATS = ("F32", "F16", "BF16")


def _separate(tensors: dict[str, StoredTensor], name: str, parts: Mapping[str, int]) -> None:
    for kind in ("weight", "bias"):
        whole = tensors.get(f"{name}.{kind}")
        if whole is None or whole.shape[0] != sum(parts.values()):
            continue
        del tensors[f"{name}.{kind}"]
        first, size = 0, whole.data.size // whole.shape[0]
        for part, n in parts.items():
            tensors[f"{part}.{kind}"] = StoredTensor(
                whole.type, (n, *whole.shape[1:]), whole.data[first * size : (first + n) * size]
            )
            first += n
