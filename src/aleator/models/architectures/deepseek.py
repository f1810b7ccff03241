"""deepseek: llama with mixtures of experts after the first layers, and a shared expert (DeepSeekMoE)."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config, json_config
from aleator.models.architecture import EXPERTS, TRANSFORMER, Architecture, HuggingFace
from aleator.models.architectures.deepseek_files import ROUTED, mixture_fields, routed
from aleator.models.config import Fields, GGUFFile, ModelConfig, refuse_others
from aleator.models.experts import after_dense

DEFAULTS = {
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 0,
    "routed_scaling_factor": 1.0,
    "n_shared_experts": 0,
}
"""Of config.json."""
FIXED = {"scoring_func": "softmax", "norm_topk_prob": False, "moe_layer_freq": 1}
"""Fields with a single value that is computed."""


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture, experts=True)
    return after_dense(config, gguf, scores="softmax", normalised=False)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    refuse_others(fields, FIXED)
    config = json_config.full_attention(fields, architecture, experts=True)
    mixtures = routed(fields.over(DEFAULTS), config.n_layers, newer=False)
    return replace(config, experts=mixtures)


DEEPSEEK = Architecture(
    "deepseek",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("deepseek",),
        read_json,
        layer=TRANSFORMER | ROUTED,
        expert=EXPERTS,
        gguf_fields=mixture_fields,
    ),
)
