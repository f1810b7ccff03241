"""glm4: norms before and after each part, gate and up in one tensor, half of a head's channels rotated."""

from __future__ import annotations

from functools import partial

from aleator.models import gguf_config, json_config
from aleator.models.architecture import TRANSFORMER, Architecture, HuggingFace
from aleator.models.architectures import pictures
from aleator.models.config import GGUFFile, ModelConfig

HEAD_DIM = 128  # if config.json has none
HALF = 0.5  # share of the channels, if config.json has none


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    pictures.refuse_pictures(gguf.fields, architecture.name)
    return gguf_config.transformer(gguf, architecture)


GLM4 = Architecture(
    "glm4",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("glm4",),
        partial(json_config.transformer, head_dim=HEAD_DIM, rotated=HALF),
        layer=TRANSFORMER
        | {
            "mlp.gate_up_proj": "ffn_up",
            "post_self_attn_layernorm": "post_attention_norm",
            "post_attention_layernorm": "ffn_norm",
            "post_mlp_layernorm": "post_ffw_norm",
        },
        rope_style="norm",
    ),
    post_norm=True,
    fused_gate=True,
)
