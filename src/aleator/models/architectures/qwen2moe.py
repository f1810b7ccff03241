"""qwen2moe: qwen2 with mixtures of experts, and a shared expert with its own router.

In GGUF files the weights of a token's experts are their scores; config.json may ask for scores divided by
their sum, and for layers without experts.
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config, json_config
from aleator.models.architecture import (
    EXPERTS,
    SHARED_ROUTED,
    TRANSFORMER,
    Architecture,
    HuggingFace,
)
from aleator.models.config import Fields, GGUFFile, ModelConfig, unsupported
from aleator.models.conversions import router_as_vector
from aleator.models.experts import in_gguf, in_json, sparse_layers


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture, experts=True)
    wide = config.n_ff[0]
    return in_gguf(config, gguf.fields, n_ff_used=wide, shared=wide, shared_router=True)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; if there are windows, by default every other first layer has one."""
    config = json_config.full_attention(fields, architecture, experts=True)
    if fields.get("use_sliding_window", False):
        first = fields.length("max_window_layers", 28, low=0)
        layers = [layer % 2 == 0 and layer < first for layer in range(config.n_layers)]
        config = replace(config, window=json_config.read_windows(fields, config, layers))
    if not fields.get("qkv_bias", True):
        raise unsupported(fields.path, "projections without a bias (qkv_bias)")
    return in_json(
        config,
        fields,
        (60, 4),
        layers=sparse_layers(fields, config.n_layers),
        n_ff=fields.width("moe_intermediate_size", 1408),
        normalised=fields.get("norm_topk_prob", False),
        n_ff_shared=fields.width("shared_expert_intermediate_size", 5632),
        shared_router=True,
    )


QWEN2MOE = Architecture(
    "qwen2moe",
    read_gguf=read_gguf,
    qkv_bias=True,
    hugging_face=HuggingFace(
        ("qwen2_moe",),
        read_json,
        layer=TRANSFORMER | SHARED_ROUTED,
        expert=EXPERTS,
        convert=router_as_vector,
    ),
)
