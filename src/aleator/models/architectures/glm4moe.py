"""glm4moe: mixtures of experts after the first layers, half of a head's channels rotated (GLM-4.5 to 4.7).

Layers that predict further tokens may guess (:mod:`aleator.models.draft_head`).
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import (
    EXPERTS,
    HEAD_NORMS,
    MTP_LAYER,
    TRANSFORMER,
    Architecture,
    HuggingFace,
)
from aleator.models.architectures import pictures
from aleator.models.architectures.deepseek_files import CHOICE_BIAS, ROUTED, mixture_fields, routed
from aleator.models.config import Fields, GGUFFile, ModelConfig
from aleator.models.experts import SIGMOID, after_dense
from aleator.models.json_config import full_attention

HALF = 0.5  # share of the channels, if config.json has none
DEFAULTS = {
    "n_routed_experts": 128,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "n_shared_experts": 1,
}
"""Of config.json, as in transformers."""


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    pictures.refuse_pictures(gguf.fields, architecture.name)
    config = gguf_config.transformer(gguf, architecture, experts=True)
    config = gguf_config.without_further(gguf.fields, config)
    return after_dense(config, gguf, default=SIGMOID)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    config = full_attention(fields, architecture, rotated=HALF, experts=True)
    return replace(config, experts=routed(fields.over(DEFAULTS), config.n_layers))


GLM4MOE = Architecture(
    "glm4moe",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("glm4_moe",),
        read_json,
        layer=TRANSFORMER
        | HEAD_NORMS
        | ROUTED
        | {"post_attention_layernorm": "post_attention_norm"},
        bare=CHOICE_BIAS,
        expert=EXPERTS,
        mtp=MTP_LAYER,
        gguf_fields=mixture_fields,
    ),
    ffn_norm="post_attention_norm",
)
