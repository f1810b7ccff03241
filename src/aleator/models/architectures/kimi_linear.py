"""kimi-linear: delta nets with a decay for each channel, compressed attention in every fourth layer, mixtures.

Nothing is rotated: the states hold the order (Kimi Team 2025, arXiv:2510.26692).  The first layers have a dense
feed-forward part; a bias is added to a router's scores only for the choice.
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config, latent
from aleator.models.architecture import Architecture
from aleator.models.config import MAX_CONV, ModelConfig
from aleator.models.delta_net import MAX_HEAD_DIM, DeltaNetConfig
from aleator.models.experts import after_dense
from aleator.models.files.gguf import GGUFFile


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file; layers without KV heads have a delta net."""
    fields, name = gguf.fields, architecture.name
    config = gguf_config.transformer(gguf, architecture, least_kv_heads=0, experts=True)
    n, heads = config.n_layers, config.n_heads
    kv_heads = config.n_kv_heads
    if not all(heads) or len(set(heads)) > 1 or all(kv_heads) or not any(kv_heads):
        raise fields.error(
            f"{name}.attention.head_count_kv",
            "some layers must have KV heads, others 0, and all as many heads",
        )
    compressed = fields.get(f"{name}.attention.key_length_mla", 0) > 0
    given = (1,) * n if compressed else heads
    shared = fields.integer(f"{name}.rope.dimension_count", 2, config.head_dim)
    rope = replace(config.rope, dim=shared)  # channels of the key that all heads share
    config = latent.in_gguf(replace(config, n_kv_heads=given, rope=rope), fields)
    kv_heads = tuple(given[layer] if kv_heads[layer] else 0 for layer in range(n))
    config = after_dense(config, gguf, normalised=True)
    dim = fields.integer(f"{name}.kda.head_dim", 1, MAX_HEAD_DIM)
    conv = fields.integer(f"{name}.ssm.conv_kernel", 2, MAX_CONV)
    return replace(
        config,
        n_kv_heads=kv_heads,
        delta=DeltaNetConfig(
            heads[0], heads[0], dim, dim, conv, config.rms_eps, channel_decays=True
        ),
    )


KIMI_LINEAR = Architecture(
    "kimi-linear", rope_style="none", read_gguf=read_gguf, recurrent="delta net"
)
