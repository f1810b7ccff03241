"""deepseek2: compressed keys and values, and mixtures of experts after the first layers (DeepSeek-V2, V3, R1).

If the file says so, the cache holds only the compressed keys (``compressed`` of
:class:`~aleator.models.config.LatentConfig`).  Layers that predict further tokens are left out; those of a
GGUF file may guess (:mod:`aleator.models.draft_head`).
"""

from __future__ import annotations

import math
from dataclasses import replace

from aleator.models import gguf_config, latent
from aleator.models.architecture import EXPERTS, TRANSFORMER, Architecture, HuggingFace, shared_mlp
from aleator.models.config import ModelConfig, QueryGrowth, unsupported
from aleator.models.experts import MAX_EXPERTS, ExpertsConfig, Scores, in_gguf
from aleator.models.files.fields import Fields, Value
from aleator.models.files.gguf import GGUFFile
from aleator.models.gguf_form import routing
from aleator.models.json_config import refuse_features

SCORES: dict[int, Scores] = {1: "softmax", 2: "sigmoid", 3: "chosen softmax"}
"""``expert_gating_func`` -> the function from the router's logits to weights."""


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    fields, name = gguf.fields, architecture.name
    config = gguf_config.transformer(gguf, architecture, experts=True)
    further = fields.integer(f"{name}.nextn_predict_layers", 0, config.n_layers - 1, 0)
    n = config.n_layers - further
    config = _stretched(latent.in_gguf(config.beginning(n), fields), fields)
    rate = fields.number(f"{name}.attention.temperature_scale", 0.0, 1e6, 0.0)
    if rate:
        length = fields.length(f"{name}.attention.temperature_length")
        config = replace(config, query_growth=QueryGrowth(rate, length))
    first = fields.layers(f"{name}.leading_dense_block_count", 0, low=0)
    # Without a gating function it is the softmax, except for GLM-4.7-Flash, as in llama.cpp.
    glm = n in (47, 48) and config.n_vocab == 154880
    key = f"{name}.expert_gating_func"
    kind = fields.integer(key, 0, 3, 0) or (2 if glm else 1)
    biased = any(f"blk.{layer}.exp_probs_b.bias" in gguf.tensors for layer in range(n))
    mixtures = in_gguf(
        fields,
        name,
        tuple(layer >= first for layer in range(n)),
        scores=SCORES[kind],
        normalised=fields.get(f"{name}.expert_weights_norm", False),
        choice_bias=biased,
        scaled=True,
    )
    shared = fields.integer(f"{name}.expert_shared_count", 1, MAX_EXPERTS)
    return replace(config, experts=replace(mixtures, n_ff_shared=shared * mixtures.n_ff))


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


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json, of DeepSeek-V2 or V3."""
    refuse_features(fields, experts=True)
    config = latent.in_json(fields, architecture)
    newer = fields.get("model_type") == "deepseek_v3"
    method = fields.get("topk_method", "noaux_tc" if newer else "greedy")
    grouped = newer or method == "group_limited_greedy"
    if not newer and method not in ("greedy", "group_limited_greedy"):
        raise unsupported(fields.path, f"experts chosen by {method!r} (topk_method)")
    if not fields.get("rope_interleave", True) and newer:
        config = replace(config, rope=replace(config.rope, style="neox"))
    n_experts = fields.integer("n_routed_experts", 1, MAX_EXPERTS, 256 if newer else 64)
    groups = fields.integer("n_group", 1, n_experts, 8 if newer else None) if grouped else 1
    best = 2 if newer else 1
    if n_experts % groups or n_experts // groups < best:
        raise fields.error("n_group", f"{n_experts} experts do not divide into {groups} groups")
    used_groups = fields.integer("topk_group", 1, groups, 4 if newer else None) if grouped else 1
    most = n_experts // groups * used_groups
    width = fields.width("moe_intermediate_size", 2048 if newer else 1407)
    first = fields.layers("first_k_dense_replace", 3 if newer else 0, low=0)
    mixtures = ExpertsConfig(
        n_experts=n_experts,
        n_used=fields.integer("num_experts_per_tok", 1, most, 8 if newer else None),
        n_ff=width,
        layers=tuple(layer >= first for layer in range(config.n_layers)),
        scores="sigmoid" if newer else "softmax",
        normalised=newer and fields.get("norm_topk_prob", True),
        scale=fields.number("routed_scaling_factor", 0.0, 1e6, 2.5 if newer else 1.0),
        n_groups=groups,
        n_groups_used=used_groups,
        n_group_best=best,
        choice_bias=newer,
        n_ff_shared=width * fields.integer("n_shared_experts", 0, MAX_EXPERTS, 1 if newer else 2),
    )
    return replace(config, experts=mixtures)


def gguf_fields(config: ModelConfig, _: Fields) -> dict[str, Value | None]:
    """The fields that :func:`read_gguf` reads besides the usual."""
    experts, latent, rope = config.experts, config.latent, config.rope
    made = routing(config)
    if experts is not None:
        made["leading_dense_block_count"] = sum(not sparse for sparse in experts.layers)
        made["expert_shared_count"] = experts.n_ff_shared // experts.n_ff
    if latent is not None and rope.scaling == "yarn":
        growth = 0.1 * math.log(rope.factor)
        whole = (config.attention_scale or 0.0) * math.sqrt(latent.head_dim)
        share = (math.sqrt(whole) - 1.0) / growth if growth else 0.0
        if share > 1e-6:
            made["rope.scaling.yarn_log_multiplier"] = 0.1 * share
            made["rope.scaling.attn_factor"] = rope.attn_factor * (1.0 + growth)
    return made


def ours(name: str) -> str:
    """A tensor's name; "" for the layer after DeepSeek-V3's 61 that predicts further tokens."""
    return "" if name.startswith("model.layers.61.") else name


DEEPSEEK2 = Architecture(
    "deepseek2",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("deepseek_v2", "deepseek_v3"),
        read_json,
        rope_style="norm",
        layer=TRANSFORMER
        | latent.LAYER
        | {
            "mlp.gate": "ffn_gate_inp",
            **shared_mlp("mlp.shared_experts"),
        },
        bare={"mlp.gate.e_score_correction_bias": "exp_probs_b.bias"},
        expert=EXPERTS,
        ours=ours,
        gguf_fields=gguf_fields,
    ),
)
