"""Reads files of Qwen's models with gated delta nets: Qwen3-Next, and Qwen3.5 with or without experts.

Blocks that predict further tokens (``nextn_predict_layers``, ``mtp``) may guess
(:mod:`aleator.models.draft_head`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from aleator.models import delta_net, gguf_config, json_config
from aleator.models.architecture import (
    EXPERTS,
    HEAD_NORMS,
    SHARED_ROUTED,
    STACKED,
    TRANSFORMER,
    Architecture,
    HuggingFace,
    under,
)
from aleator.models.config import Fields, GGUFFile, ModelConfig, StoredTensor, unsupported
from aleator.models.conversions import axes, in_text_model, router_as_vector, text_part
from aleator.models.experts import in_gguf, in_json, sparse_layers
from aleator.models.state_space import as_gguf as state_space_as_gguf

HEAD_DIM = 256  # if config.json has none, as in transformers
ROTATED = 0.25  # likewise, share of a head's channels

LAYER = {
    **TRANSFORMER,
    **HEAD_NORMS,
    "post_attention_layernorm": "post_attention_norm",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
"""Hugging Face's names of a layer's tensors -> GGUF's."""

BARE = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}
"""Like :data:`LAYER`, for names that have no ".weight" at the end."""

MTP_PREFIX = "mtp."
MTP_LAYER = {
    "fc": "nextn.eh_proj",
    "pre_fc_norm_embedding": "nextn.enorm",
    "pre_fc_norm_hidden": "nextn.hnorm",
    "norm": "nextn.shared_head_norm",
}
"""Names besides a layer's in the block that predicts further tokens, and what comes before them."""

PROJECTIONS = {
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
}
"""Hugging Face's names of a gated delta net's projections -> GGUF's."""


def read_gguf(gguf: GGUFFile, architecture: Architecture, *, tiled: bool) -> ModelConfig:
    fields, name = gguf.fields, architecture.name
    mixed = bool(fields.get(f"{name}.expert_count", 0))
    config = gguf_config.transformer(gguf, architecture, least_kv_heads=0, experts=mixed)
    if mixed:
        wide = config.n_ff[0]
        config = in_gguf(
            config, fields, n_ff_used=wide, normalised=True, shared=wide, shared_router=True
        )
    delta = delta_net.read_gguf(fields, name, config.rms_eps, tiled)
    config = replace(gguf_config.without_further(fields, config), delta=delta)
    states = _states_in_gguf(fields, name, config.n_layers)
    return _with_states(fields, config, states, f"{name}.attention.head_count_kv")


def read_json(fields: Fields, architecture: Architecture, *, experts: bool) -> ModelConfig:
    """The dimensions in config.json; ``experts``: whether there are mixtures of experts."""
    values = dict(fields.values)
    if experts:  # experts have their own width; the other layers' width may be missing
        values.setdefault("intermediate_size", values.get("moe_intermediate_size", 512))
    # For text all axes are alike.
    fields = json_config.with_scaling(Fields(fields.path, values), "default", ["mrope"])
    config = json_config.transformer(
        fields, architecture, experts=experts, head_dim=HEAD_DIM, rotated=ROTATED
    )
    config = replace(config, delta=delta_net.read_json(fields))
    if experts:
        config = in_json(
            config,
            fields,
            (256, 8) if architecture.name == "qwen35moe" else (512, 10),
            layers=sparse_layers(fields, config.n_layers),
            n_ff=fields.width("moe_intermediate_size", 512),
            normalised=fields.get("norm_topk_prob", True),
            n_ff_shared=fields.width("shared_expert_intermediate_size", 512),
            shared_router=True,
        )
    states = json_config.listed_kinds(
        fields, config.n_layers, ("linear_attention",), ("full_attention",)
    )
    if states is None:
        states = _all_but_every(fields, "full_attention_interval", config.n_layers)
    return _with_states(fields, config, states, "num_key_value_heads")


def _states_in_gguf(fields: Fields, name: str, n_layers: int) -> tuple[bool, ...]:
    """Which layers keep a state: by a list, or all except every fourth (or every nth) one."""
    key = f"{name}.attention.recurrent_layers"
    listed = fields.get(key, kind=list)
    if listed is None:
        return _all_but_every(fields, f"{name}.full_attention_interval", n_layers)
    if len(listed) < n_layers or not all(type(each) is bool for each in listed):
        raise fields.error(key, f"{key} must be {n_layers} booleans")
    return tuple(listed[:n_layers])


def _all_but_every(fields: Fields, key: str, n_layers: int) -> tuple[bool, ...]:
    step = fields.layers(key, 4)
    return tuple((layer + 1) % step != 0 for layer in range(n_layers))


def _with_states(
    fields: Fields, config: ModelConfig, states: Sequence[bool], key: str
) -> ModelConfig:
    """The model with KV heads only in the layers that attend."""
    if all(states):
        raise unsupported(fields.path, "layers with a gated delta net alone, without any attention")
    for layer, (state, heads) in enumerate(zip(states, config.n_kv_heads, strict=True)):
        if not state and not heads:
            raise fields.error(key, f"layer {layer} attends and has no KV heads")
    return replace(config, n_kv_heads=config.kv_heads_beside(states))


def as_gguf(name: str, tensor: StoredTensor) -> StoredTensor:
    """Convert a tensor to GGUF's form: weights of norms are whole except the heads', a router is a vector."""
    if name.endswith("norm.weight") and not name.endswith("ssm_norm.weight"):
        return StoredTensor.of(np.float32(1) + tensor.floats())
    return state_space_as_gguf(name, router_as_vector(name, tensor))


def read_gguf_35(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file, which must say how channels are divided among the axes."""
    config = read_gguf(gguf, architecture, tiled=True)
    key, pairs = f"{architecture.name}.rope.dimension_sections", config.rope.dim // 2
    sections = gguf.fields.require(key, list)
    if len(sections) > 4 or not all(type(n) is int and n >= 0 for n in sections):
        raise gguf.fields.error(key, f"{key} must be up to four sizes of sections")
    sections = [*sections, 0, 0, 0][:3]
    if not all(pair < 3 * sections[pair % 3] for pair in range(pairs)) or sum(sections) < pairs:
        raise gguf.fields.error(key, f"{key} is {sections}; {pairs} pairs are to be divided")
    return config


def read_json_35(fields: Fields, architecture: Architecture, *, experts: bool) -> ModelConfig:
    """The dimensions in config.json, whose text part may be a section of its own."""
    kind = "qwen3_5_moe" if experts else "qwen3_5"
    fields = text_part(fields, f"{kind}_text", kind)
    return read_json(fields, architecture, experts=experts)


def _tiled(config: ModelConfig) -> ModelConfig:
    """The dimensions as GGUF says them: heads of values in another order."""
    return (
        config if config.delta is None else replace(config, delta=replace(config.delta, tiled=True))
    )


def qwen35(name: str, model_types: tuple[str, ...], *, experts: bool) -> Architecture:
    """The architecture of Qwen3.5, with mixtures of experts or without."""
    return Architecture(
        name,
        read_gguf=read_gguf_35,
        hugging_face=HuggingFace(
            model_types,
            partial(read_json_35, experts=experts),
            layer=LAYER | PROJECTIONS | (SHARED_ROUTED if experts else {}),
            bare=BARE | (under("mlp", STACKED) if experts else {}),
            expert=EXPERTS if experts else {},
            mtp=MTP_LAYER,
            mtp_prefix=MTP_PREFIX,
            usual_name=in_text_model,
            convert=as_gguf,
            config_in_gguf=_tiled,
            gguf_fields=axes,
        ),
        ffn_norm="post_attention_norm",
        head_norm=True,
        attention_gate=True,
        shifts=False,
        position_axes=4,
        recurrent="delta net",
    )
