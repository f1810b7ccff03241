"""hunyuan-dense: llama whose query and key heads are normalised after the rotation.

Such keys cannot be rotated to other positions: a shift is refused.
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import TRANSFORMER, Architecture, HuggingFace
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

HUNYUAN_DENSE = Architecture(
    "hunyuan-dense",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(("hunyuan_v1_dense",), layer=LAYER),
    head_norm=True,
    head_norm_kind="rotated head",
    shifts=False,
)
