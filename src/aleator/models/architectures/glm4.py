"""glm4: norms before and after each part, gate and up in one tensor, half of a head's channels rotated."""

from __future__ import annotations

from aleator.models.architecture import TRANSFORMER, Architecture, HuggingFace
from aleator.models.architectures import pictures
from aleator.models.config import ModelConfig
from aleator.models.files.fields import Fields
from aleator.models.files.gguf import GGUFFile
from aleator.models.gguf_config import transformer
from aleator.models.json_config import rotated_share
from aleator.models.json_config import transformer as transformer_of_json

HEAD_DIM = 128  # if config.json has none
HALF = 0.5  # share of the channels, if config.json has none


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    pictures.refuse_pictures(gguf.fields, architecture.name)
    return transformer(gguf, architecture)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    fields = rotated_share(fields, HALF)
    return transformer_of_json(fields, architecture, head_dim=HEAD_DIM, partial=True)


GLM4 = Architecture(
    "glm4",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("glm4",),
        read_json,
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
