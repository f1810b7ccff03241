"""Reads files of DeepSeek's models with compressed keys, and mixtures of their kind in other models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from aleator.models import gguf_config, json_config, latent
from aleator.models.architecture import Architecture, shared_mlp
from aleator.models.config import (
    ExpertsConfig,
    GGUFFile,
    ModelConfig,
    QueryGrowth,
    present,
    refuse_others,
)
from aleator.models.conversion.gguf_form import routing
from aleator.models.experts import MAX_EXPERTS, SIGMOID, after_dense
from aleator.models.files.fields import Fields, Value

ROUTED = {"mlp.gate": "ffn_gate_inp", **shared_mlp("mlp.shared_experts")}
"""Names of a layer's router and shared expert."""
CHOICE_BIAS = {"mlp.gate.e_score_correction_bias": "exp_probs_b.bias"}


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    fields, name = gguf.fields, architecture.name
    config = gguf_config.transformer(gguf, architecture, experts=True)
    config = gguf_config.without_further(fields, config)
    config = _stretched(latent.in_gguf(config, fields), fields)
    rate = fields.number(f"{name}.attention.temperature_scale", 0.0, 1e6, 0.0)
    if rate:
        length = fields.length(f"{name}.attention.temperature_length")
        config = replace(config, query_growth=QueryGrowth(rate, length))
    # Without a gating function it is the softmax, except for GLM-4.7-Flash, as in llama.cpp.
    glm = config.n_layers in (47, 48) and config.n_vocab == 154880
    return after_dense(config, gguf, default=SIGMOID if glm else 1)


def _stretched(config: ModelConfig, fields: Fields) -> ModelConfig:
    """YaRN as in llama.cpp: its magnitude multiplies whole scores, not only the rotated channels.

    ``yarn_log_multiplier`` is a tenth of config.json's ``mscale_all_dim``; without it lengths grow as well.
    """
    name, rope = config.architecture, config.rope
    share = fields.number(f"{name}.rope.scaling.yarn_log_multiplier", 0.0, 1e6, 0.0) / 0.1
    given = fields.number(f"{name}.rope.scaling.attn_factor", 0.0, 1e6, 1.0)
    growth = 0.1 * math.log(rope.factor)
    attn_factor, own = given, given * (1.0 + growth)
    if rope.scaling == "yarn" and share:
        attn_factor, own = given / (1.0 + growth), given
    grown = own * (1.0 + share * growth)
    return replace(
        config,
        rope=replace(rope, attn_factor=attn_factor),
        attention_scale=(config.attention_scale or 1.0) * grown * grown,
    )


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


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json of a model whose keys are not compressed."""
    refuse_others(fields, FIXED)
    config = json_config.full_attention(fields, architecture, experts=True)
    return replace(config, experts=routed(fields.over(DEFAULTS), config.n_layers, newer=False))


def routed(
    fields: Fields, n_layers: int, *, newer: bool = True, names: Mapping[str, str] | None = None
) -> ExpertsConfig:
    """The mixtures in a config.json, over its defaults.

    ``newer``: as in DeepSeek-V3.  ``names``: fields that the file names otherwise -> how.
    """
    usual = (
        "n_routed_experts",
        "n_group",
        "num_experts_per_tok",
        "norm_topk_prob",
        "n_shared_experts",
    )
    all_, group, used, normalised, shared = [(names or {}).get(name, name) for name in usual]
    n_experts = fields.integer(all_, 1, MAX_EXPERTS)
    groups = fields.integer(group, 1, n_experts)
    best = 2 if newer else 1
    if n_experts % groups or n_experts // groups < best:
        raise fields.error(group, f"{n_experts} experts do not divide into {groups} groups")
    used_groups = fields.integer("topk_group", 1, groups)
    width = fields.width("moe_intermediate_size")
    first = fields.layers("first_k_dense_replace", low=0)
    return ExpertsConfig(
        n_experts=n_experts,
        n_used=fields.integer(used, 1, n_experts // groups * used_groups),
        n_ff=width,
        layers=tuple(layer >= first for layer in range(n_layers)),
        scores="sigmoid" if newer else "softmax",
        normalised=newer and fields.require(normalised, bool),
        scale=fields.number("routed_scaling_factor", 0.0, 1e6),
        n_groups=groups,
        n_groups_used=used_groups,
        n_group_best=best,
        choice_bias=newer,
        n_ff_shared=width * fields.integer(shared, 0, MAX_EXPERTS),
    )


def mixture_fields(config: ModelConfig, _: Fields) -> dict[str, Value | None]:
    """The fields that :func:`~aleator.models.experts.after_dense` reads besides the usual."""
    made, experts = routing(config), present(config.experts)
    made["leading_dense_block_count"] = sum(not sparse for sparse in experts.layers)
    made["expert_shared_count"] = experts.n_ff_shared // experts.n_ff
    return made


def gguf_fields(config: ModelConfig, fields: Fields) -> dict[str, Value | None]:
    """The fields that :func:`read_gguf` reads besides the usual, with compressed keys."""
    latent, rope = config.latent, config.rope
    made = mixture_fields(config, fields)
    if latent is not None and rope.scaling == "yarn":
        growth = 0.1 * math.log(rope.factor)
        whole = (config.attention_scale or 0.0) * math.sqrt(latent.head_dim)
        share = (math.sqrt(whole) - 1.0) / growth if growth else 0.0
        if share > 1e-6:
            made["rope.scaling.yarn_log_multiplier"] = 0.1 * share
            made["rope.scaling.attn_factor"] = rope.attn_factor * (1.0 + growth)
    return made
