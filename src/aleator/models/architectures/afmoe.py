"""afmoe: gated attention, norms around each part, windows, mixtures after dense layers (Arcee's Trinity).

Layers without a window are not rotated.
"""

from __future__ import annotations

import math
from dataclasses import replace

from aleator.models import gguf_config, json_config
from aleator.models.architecture import (
    EXPERTS,
    HEAD_NORMS,
    TRANSFORMER,
    Architecture,
    HuggingFace,
    shared_mlp,
)
from aleator.models.architectures.deepseek_files import mixture_fields
from aleator.models.architectures.rotating_windows import EVERY, rotating
from aleator.models.config import Fields, GGUFFile, ModelConfig, refuse
from aleator.models.experts import MAX_EXPERTS, SIGMOID, after_dense, in_json

WINDOW = 1024  # positions, if config.json has none


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file; as in llama.cpp, every fourth layer is not rotated."""
    config = gguf_config.transformer(gguf, architecture, experts=True)
    window = gguf_config.read_windows(gguf.fields, config, every=EVERY)
    unrotated = tuple((layer + 1) % EVERY == 0 for layer in range(config.n_layers))
    scale = math.sqrt(config.n_embd)
    config = replace(config, window=window, unrotated=unrotated, embedding_scale=scale)
    return after_dense(config, gguf, default=SIGMOID)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    refuse(fields, "gates beside biases", "attention_bias")
    config = json_config.transformer(fields, architecture, experts=True, head_dim=128)
    every = fields.layers("global_attn_every_n_layers", EVERY)
    layers = [(layer + 1) % every != 0 for layer in range(config.n_layers)]
    config = rotating(config, json_config.read_windows(fields, config, layers, size=WINDOW))
    if fields.get("mup_enabled", False):
        config = replace(config, embedding_scale=math.sqrt(config.n_embd))
    first = fields.layers("num_dense_layers", 1, low=0)
    width = fields.width("moe_intermediate_size", 1408)
    return in_json(
        config,
        fields,
        (64, 6),
        layers=tuple(layer >= first for layer in range(config.n_layers)),
        n_ff=width,
        n_ff_shared=width * fields.integer("num_shared_experts", 0, MAX_EXPERTS, 2),
        scores="sigmoid",
        normalised=True,
        scale=fields.number("route_scale", 0.0, 1e6, 1.0),
        choice_bias=True,
    )


AFMOE = Architecture(
    "afmoe",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("afmoe",),
        read_json,
        layer=TRANSFORMER
        | HEAD_NORMS
        | shared_mlp("mlp.shared_experts")
        | {
            "self_attn.gate_proj": "attn_gate",
            "post_attention_layernorm": "post_attention_norm",
            "pre_mlp_layernorm": "ffn_norm",
            "post_mlp_layernorm": "post_ffw_norm",
            "mlp.router.gate": "ffn_gate_inp",
        },
        bare={"mlp.expert_bias": "exp_probs_b.bias"},
        expert=EXPERTS,
        gguf_fields=mixture_fields,
    ),
    attention_gate=True,
    post_norm=True,
    head_norm=True,
)
