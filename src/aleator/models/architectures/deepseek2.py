"""deepseek2: compressed keys and values, and mixtures of experts after the first layers (DeepSeek-V2, V3, R1).

If the file says so, the cache holds only the compressed keys (``compressed`` of
:class:`~aleator.models.config.LatentConfig`).  Layers that predict further tokens may guess
(:mod:`aleator.models.draft_head`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aleator.models import latent
from aleator.models.architecture import EXPERTS, MTP_LAYER, TRANSFORMER, Architecture, HuggingFace
from aleator.models.architectures.deepseek_files import (
    CHOICE_BIAS,
    ROUTED,
    gguf_fields,
    read_gguf,
    routed,
)
from aleator.models.config import Fields, ModelConfig, unsupported

V2: dict[str, Any] = {
    "n_routed_experts": 64,
    "moe_intermediate_size": 1407,
    "first_k_dense_replace": 0,
    "routed_scaling_factor": 1.0,
    "n_shared_experts": 2,
}
V3: dict[str, Any] = {
    "n_routed_experts": 256,
    "n_group": 8,
    "topk_group": 4,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "n_shared_experts": 1,
}
"""Defaults of config.json, as in transformers."""


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json, of DeepSeek-V2, V3 or Kimi K2, which is a V3."""
    config = latent.in_json(fields, architecture, experts=True)
    newer = fields.get("model_type") != "deepseek_v2"
    method = fields.get("topk_method", "noaux_tc" if newer else "greedy")
    grouped = newer or method == "group_limited_greedy"
    if not newer and method not in ("greedy", "group_limited_greedy"):
        raise unsupported(fields.path, f"experts chosen by {method!r} (topk_method)")
    if not fields.get("rope_interleave", True) and newer:
        config = replace(config, rope=replace(config.rope, style="neox"))
    if not grouped:
        fields = fields.changed(n_group=1, topk_group=1)
    made = routed(fields.over(V3 if newer else V2), config.n_layers, newer=newer)
    return replace(config, experts=made)


DEEPSEEK2 = Architecture(
    "deepseek2",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("deepseek_v2", "deepseek_v3", "kimi_k2"),
        read_json,
        rope_style="norm",
        layer=TRANSFORMER | latent.LAYER | ROUTED,
        bare=CHOICE_BIAS,
        expert=EXPERTS,
        mtp=MTP_LAYER,
        gguf_fields=gguf_fields,
    ),
)
