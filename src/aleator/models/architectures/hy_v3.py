"""hy_v3: qwen3 with mixtures of experts after the first layers, and a shared expert (Hunyuan 3).

Layers that predict further tokens are left out.
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config, json_config
from aleator.models.architecture import (
    EXPERTS,
    HEAD_NORMS,
    MTP_LAYER,
    TRANSFORMER,
    Architecture,
    HuggingFace,
    shared_mlp,
)
from aleator.models.architectures.deepseek_files import mixture_fields
from aleator.models.config import Fields, GGUFFile, ModelConfig, present, refuse, refuse_others
from aleator.models.experts import MAX_EXPERTS, SIGMOID, after_dense, in_json, with_router

DEFAULTS = {"rope_theta": 11158840.0}
"""Of config.json, as in transformers."""
FIXED = {"route_norm": True, "qk_norm": True, "moe_router_use_sigmoid": True}
"""Fields with a single value that is computed."""


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file; layers without a router are dense, as in llama.cpp."""
    config, fields = gguf_config.transformer(gguf, architecture, experts=True), gguf.fields
    config = gguf_config.without_further(fields, config)
    config = after_dense(config, gguf, default=SIGMOID, shared=1, own_width=True)
    layers = with_router(gguf, config.n_layers)
    return replace(config, experts=replace(present(config.experts), layers=layers))


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    refuse_others(fields, FIXED)
    refuse(fields, "biases of feed-forward parts", "mlp_bias")
    given = fields.over(DEFAULTS)
    config = json_config.transformer(given, architecture, experts=True, head_dim=128)
    n = config.n_layers
    sparse = json_config.listed_kinds(fields, n, ("sparse",), ("dense",), key="mlp_layer_types")
    first = fields.layers("first_k_dense_replace", 1, low=0)
    width = fields.width("moe_intermediate_size", 1536)
    return in_json(
        config,
        fields,
        (192, 8),
        layers=sparse or tuple(layer >= first for layer in range(n)),
        n_ff=width,
        n_ff_shared=width * fields.integer("num_shared_experts", 1, MAX_EXPERTS, 1),
        scores="sigmoid",
        normalised=True,
        scale=fields.number("router_scaling_factor", 0.0, 1e6, 2.826),
        choice_bias=True,
    )


HY_V3 = Architecture(
    "hy_v3",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("hy_v3",),
        read_json,
        layer=TRANSFORMER
        | HEAD_NORMS
        | shared_mlp("mlp.shared_mlp")
        | {"mlp.router.gate": "ffn_gate_inp"},
        bare={"mlp.expert_bias": "exp_probs_b"},
        expert=EXPERTS,
        mtp=MTP_LAYER | {"final_layernorm": "layer_output_norm"},
        gguf_fields=mixture_fields,
    ),
    head_norm=True,
)
