"""How files of Qwen's models with gated delta nets are read: Qwen3-Next's, and Qwen3.5's of both kinds.

Blocks that predict further tokens (``nextn_predict_layers``, ``mtp``) are left out, as llama.cpp's plain
decoding leaves them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from aleator.models import delta_net, gguf_config, json_config
from aleator.models.architecture import Architecture
from aleator.models.config import MAX_LAYERS, ModelConfig
from aleator.models.experts import (
    MAX_WIDTH,
    ExpertsConfig,
    in_gguf,
    read_n_experts,
    sparse_layers,
)
from aleator.models.files.fields import Fields
from aleator.models.files.gguf import GGUFFile
from aleator.models.files.tensor_types import StoredTensor
from aleator.models.state_space import as_gguf as state_space_as_gguf

HEAD_DIM = 256  # where config.json gives none, as transformers has it
ROTATED = 0.25  # likewise, of a head's channels

LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
"""Hugging Face's names of a layer's tensors -> GGUF's."""

BARE = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}
"""Like :data:`LAYER`, of tensors whose names end there."""

MIXTURE = {
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
"""Like :data:`LAYER`, of mixtures of experts; the experts are in :data:`STACKED` or one by one."""

STACKED = {
    "mlp.experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
}
"""Like :data:`BARE`, of experts that are stored together."""


def read_gguf(gguf: GGUFFile, architecture: Architecture, *, tiled: bool) -> ModelConfig:
    """The dimensions in a GGUF file."""
    fields, name = gguf.fields, architecture.name
    mixed = bool(fields.get(f"{name}.expert_count", 0))
    config = gguf_config.transformer(gguf, architecture, least_kv_heads=0, experts=mixed)
    blocks = config.n_layers
    further = fields.integer(f"{name}.nextn_predict_layers", 0, MAX_LAYERS, 0)
    if further >= blocks:
        raise fields.error(
            f"{name}.nextn_predict_layers", f"{further} of {blocks} layers predict further tokens"
        )
    n_layers = blocks - further
    states = delta_net.state_layers_in_gguf(fields, name, n_layers)
    if mixed:
        mixtures = in_gguf(
            fields,
            name,
            (True,) * blocks,
            n_ff_used=config.n_ff[0],
            normalised=True,
            shared=True,
            shared_router=True,
        )
        mixtures = replace(
            mixtures,
            layers=mixtures.layers[:n_layers],
            n_ff_shared=mixtures.n_ff_shared or config.n_ff[0],
        )
        config = replace(config, experts=mixtures)
    config = replace(
        config,
        n_layers=n_layers,
        n_heads=config.n_heads[:n_layers],
        n_kv_heads=config.n_kv_heads[:n_layers],
        n_ff=config.n_ff[:n_layers],
        delta=delta_net.read_gguf(fields, name, config.rms_eps, tiled),
    )
    return _with_states(fields, config, states, f"{name}.attention.head_count_kv")


def read_json(fields: Fields, architecture: Architecture, *, experts: bool) -> ModelConfig:
    """The dimensions in config.json; ``experts``: whether there are mixtures of experts."""
    json_config.refuse_features(fields, experts=experts)
    values = dict(fields.values)
    rope = fields.get("rope_parameters", kind=dict) or fields.get("rope_scaling", kind=dict) or {}
    values["partial_rotary_factor"] = rope.get(
        "partial_rotary_factor", values.get("partial_rotary_factor", ROTATED)
    )
    if experts:  # which have their own width; that of layers without them may be left out
        values.setdefault("intermediate_size", values.get("moe_intermediate_size", 512))
    if rope.get("rope_type", rope.get("type")) == "mrope":  # of text all axes are alike
        values["rope_parameters"] = {**rope, "rope_type": "default"}
    fields = Fields(fields.path, values)
    config = json_config.transformer(fields, architecture, head_dim=HEAD_DIM, partial=True)
    config = replace(config, delta=delta_net.read_json(fields))
    if experts:
        n_experts = read_n_experts(fields, 512)
        mixtures = ExpertsConfig(
            n_experts=n_experts,
            n_used=fields.integer("num_experts_per_tok", 1, n_experts, 10),
            n_ff=fields.integer("moe_intermediate_size", 1, MAX_WIDTH, 512),
            layers=sparse_layers(fields, config.n_layers),
            normalised=fields.get("norm_topk_prob", True),
            n_ff_shared=fields.integer("shared_expert_intermediate_size", 1, MAX_WIDTH, 512),
            shared_router=True,
        )
        config = replace(config, experts=mixtures)
    states = delta_net.state_layers_in_json(fields, config.n_layers)
    return _with_states(fields, config, states, "num_key_value_heads")


def _with_states(
    fields: Fields, config: ModelConfig, states: Sequence[bool], key: str
) -> ModelConfig:
    """The model with KV heads in the layers that attend alone."""
    delta_net.check_attends(fields.path, states)
    pairs = list(zip(states, config.n_kv_heads, strict=True))
    for layer, (state, heads) in enumerate(pairs):
        if not state and not heads:
            raise fields.error(key, f"layer {layer} attends and has no KV heads")
    return replace(config, n_kv_heads=tuple(0 if state else heads for state, heads in pairs))


def without_further(name: str) -> str:
    """A tensor's name; "" for one of the blocks that predict further tokens."""
    return "" if name.startswith("mtp.") else name


def as_gguf(name: str, tensor: StoredTensor) -> StoredTensor:
    """A tensor as GGUF files hold it: whole weights of norms but that of heads, and a router as a vector."""
    if name.endswith("norm.weight") and not name.endswith("ssm_norm.weight"):
        return StoredTensor.of(np.float32(1) + tensor.floats())
    if name.endswith("ffn_gate_inp_shexp.weight") and len(tensor.shape) == 2:
        return replace(tensor, shape=(int(np.prod(tensor.shape)),))
    return state_space_as_gguf(name, tensor)
