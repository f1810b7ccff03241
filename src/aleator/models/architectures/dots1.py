"""dots1: qwen3 with mixtures of experts after the first layers, and a shared expert (dots.llm1)."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config, json_config
from aleator.models.architecture import EXPERTS, HEAD_NORMS, TRANSFORMER, Architecture, HuggingFace
from aleator.models.architectures.deepseek_files import CHOICE_BIAS, ROUTED, mixture_fields, routed
from aleator.models.config import Fields, GGUFFile, ModelConfig
from aleator.models.experts import after_dense

DEFAULTS = {
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 0,
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
}
"""Of config.json, as in transformers."""
FULL = 62  # first layers without a window, if config.json says nothing


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture, experts=True)
    return after_dense(config, gguf)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    config = json_config.full_attention(fields, architecture, experts=True)
    first = fields.length("max_window_layers", FULL, low=0)
    layers = [layer >= first for layer in range(config.n_layers)]
    window = json_config.read_windows(fields, config, layers)
    mixtures = routed(fields.over(DEFAULTS), config.n_layers)
    return replace(config, window=window, experts=mixtures)


DOTS1 = Architecture(
    "dots1",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("dots1",),
        read_json,
        layer=TRANSFORMER | HEAD_NORMS | ROUTED,
        bare=CHOICE_BIAS,
        expert=EXPERTS,
        gguf_fields=mixture_fields,
    ),
    head_norm=True,
)
