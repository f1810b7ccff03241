"""What the files of hunyuan-dense and hunyuan_vl share."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import TRANSFORMER, Architecture
from aleator.models.config import GGUFFile, ModelConfig


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file; if the file has an alpha, the rotary base is increased by it here."""
    config = gguf_config.transformer(gguf, architecture)
    alpha = gguf.fields.number(f"{architecture.name}.rope.scaling.alpha", 0.0, 1e6, 0.0)
    if not alpha:
        return config
    dim = config.head_dim
    theta = config.rope.theta * alpha ** (dim / (dim - 2))
    return replace(config, rope=replace(config.rope, theta=theta))


LAYER = TRANSFORMER | {
    "self_attn.query_layernorm": "attn_q_norm",
    "self_attn.key_layernorm": "attn_k_norm",
}
