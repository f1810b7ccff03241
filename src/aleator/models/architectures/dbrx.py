"""dbrx: mixtures of experts in every layer, layer norms, clamped queries, keys and values; from GGUF."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture
from aleator.models.config import GGUFFile, ModelConfig
from aleator.models.experts import in_gguf


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture, experts=True)
    clamp = gguf.fields.number("dbrx.attention.clamp_kqv", 0.0, 1e6)
    mixed = in_gguf(config, gguf.fields, n_ff=config.n_ff[0], normalised=True)
    return replace(mixed, qkv_clamp=clamp)


DBRX = Architecture("dbrx", read_gguf=read_gguf, norm="layer", ffn_norm="attn_output_norm")
