"""kimi-linear: delta nets with a decay for each channel, compressed attention in every fourth layer, mixtures.

Nothing is rotated: the states hold the order (Kimi Team 2025, arXiv:2510.26692).  The first layers have a dense
feed-forward part; a bias is added to a router's scores only for the choice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aleator.models import gguf_config, json_config, latent
from aleator.models.architecture import (
    GATED,
    MIXTRAL_EXPERT,
    TRANSFORMER,
    Architecture,
    HuggingFace,
    shared_mlp,
    under,
)
from aleator.models.architectures.deepseek_files import mixture_fields, routed
from aleator.models.config import MAX_CONV, GGUFFile, ModelConfig, StoredTensor, refuse_others
from aleator.models.delta_net import MAX_HEAD_DIM, MAX_HEADS, UNIT_EPS, DeltaNetConfig
from aleator.models.experts import after_dense
from aleator.models.files.fields import Fields, Value
from aleator.models.state_space import as_gguf as state_space_as_gguf

NAMES = {
    "n_routed_experts": "num_experts", "n_group": "num_expert_group", "n_shared_experts": "num_shared_experts",
    "num_experts_per_tok": "num_experts_per_token", "norm_topk_prob": "moe_renormalize",
}  # fmt: skip
"""DeepSeek-V3's fields -> those of config.json here."""
DEFAULTS: dict[str, Any] = {
    "num_experts": 256, "num_expert_group": 1, "topk_group": 1, "num_experts_per_token": 8,
    "moe_intermediate_size": 1024, "first_k_dense_replace": 1, "moe_renormalize": True,
    "routed_scaling_factor": 2.446, "num_shared_experts": 1,
}  # fmt: skip
"""Of config.json, as in transformers."""
FIXED = {"mla_use_nope": True, "moe_router_activation_func": "sigmoid", "moe_layer_freq": 1}
"""Fields with a single value that is computed."""


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file; layers without KV heads have a delta net."""
    fields, name = gguf.fields, architecture.name
    config = gguf_config.transformer(gguf, architecture, least_kv_heads=0, experts=True)
    n, heads = config.n_layers, config.n_heads
    kv_heads = config.n_kv_heads
    if not all(heads) or len(set(heads)) > 1 or all(kv_heads) or not any(kv_heads):
        raise fields.error(
            f"{name}.attention.head_count_kv",
            "some layers must have KV heads, others 0, and all as many heads",
        )
    compressed = fields.get(f"{name}.attention.key_length_mla", 0) > 0
    given = (1,) * n if compressed else heads
    shared = fields.integer(f"{name}.rope.dimension_count", 2, config.head_dim)
    rope = replace(config.rope, dim=shared)  # channels of the key that all heads share
    config = latent.in_gguf(replace(config, n_kv_heads=given, rope=rope), fields)
    kv_heads = tuple(given[layer] if kv_heads[layer] else 0 for layer in range(n))
    config = after_dense(config, gguf, normalised=True)
    dim = fields.integer(f"{name}.kda.head_dim", 1, MAX_HEAD_DIM)
    conv = fields.integer(f"{name}.ssm.conv_kernel", 2, MAX_CONV)
    return replace(
        config,
        n_kv_heads=kv_heads,
        delta=DeltaNetConfig(
            heads[0], heads[0], dim, dim, conv, config.rms_eps, channel_decays=True
        ),
    )


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json, as Moonshot AI's files have them or as transformers writes them."""
    refuse_others(fields, FIXED)
    length = fields.length("model_max_length", 1 << 20)
    fields = fields.over(DEFAULTS | {"max_position_embeddings": length})
    config = latent.in_json(fields, architecture, experts=True)
    n = config.n_layers
    mixtures = routed(fields, n, names=NAMES)
    sparse = json_config.listed_kinds(fields, n, ("sparse",), ("dense",), key="mlp_layer_types")
    nets = Fields(fields.path, fields.get("linear_attn_config", kind=dict) or {})
    return replace(
        config,
        experts=replace(mixtures, layers=sparse or mixtures.layers),
        n_kv_heads=config.kv_heads_beside(_states(fields, nets, n)),
        delta=_delta_net(fields, nets),
    )


def _states(fields: Fields, nets: Fields, n_layers: int) -> tuple[bool, ...]:
    """Which layers have a delta net: by the numbers of those that attend, from 1 on, or by their kinds."""
    key = "layer_types"
    states = json_config.listed_kinds(fields, n_layers, ("linear_attention",), ("full_attention",))
    if states is None:
        key = "full_attn_layers"
        numbers = nets.require(key, list)
        if not all(type(i) is int and 1 <= i <= n_layers for i in numbers):
            raise nets.error(key, f"{key} must be numbers of layers, 1 to {n_layers}")
        attend = set(numbers)  # the list may be long
        states = tuple(layer + 1 not in attend for layer in range(n_layers))
    if all(states) or not any(states):
        raise nets.error(key, "some layers must attend, and others have a delta net")
    return states


def _delta_net(fields: Fields, nets: Fields) -> DeltaNetConfig:
    """The sizes of the delta nets, which transformers writes beside the others."""

    def size(own: str, flat: str, low: int, high: int, default: int) -> int:
        if own in nets:
            return nets.integer(own, low, high)
        return fields.integer(flat, low, high, default)

    heads = size("num_heads", "linear_num_heads", 1, MAX_HEADS, 32)
    dim = size("head_dim", "linear_head_dim", 1, MAX_HEAD_DIM, 128)
    conv = size("short_conv_kernel_size", "linear_conv_kernel_dim", 2, MAX_CONV, 4)
    return DeltaNetConfig(heads, heads, dim, dim, conv, UNIT_EPS, channel_decays=True)


def as_gguf(name: str, tensor: StoredTensor) -> StoredTensor:
    """Convert a tensor to GGUF's form: a convolution and the decays have further dimensions there."""
    n = tensor.n_elements
    if ".ssm_conv1d_" in name and len(tensor.shape) > 1 and n:  # others are refused for their shape
        return replace(tensor, shape=(1, tensor.shape[0], 1, n // tensor.shape[0]))
    if name.endswith("ssm_a"):
        return replace(state_space_as_gguf(name, tensor), shape=(n, 1))
    return tensor


def gguf_fields(config: ModelConfig, fields: Fields) -> dict[str, Value | None]:
    """The fields that :func:`read_gguf` reads besides the usual."""
    made = mixture_fields(config, fields)
    return made | {
        "attention.head_count_kv": config.n_kv_heads,
        "rope.dimension_count": config.rope.dim,
    }


NET = {
    "f_a_proj": "ssm_f_a", "f_b_proj": "ssm_f_b", "g_a_proj": "ssm_g_a", "g_b_proj": "ssm_g_b",
    "b_proj": "ssm_beta", "o_norm": "ssm_norm", "q_conv1d": "ssm_conv1d_q", "k_conv1d": "ssm_conv1d_k",
    "v_conv1d": "ssm_conv1d_v",
}  # fmt: skip
"""Names of a delta net's tensors."""
MIXTURE = "block_sparse_moe"
FED = {
    f"{MIXTURE}.gate": "ffn_gate_inp",
    **shared_mlp(f"{MIXTURE}.shared_experts"),
    **under(MIXTURE, GATED),  # of dense layers, where transformers wrote the file
}

KIMI_LINEAR = Architecture(
    "kimi-linear",
    rope_style="none",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("kimi_linear",),
        read_json,
        layer=TRANSFORMER | latent.LAYER | under("self_attn", NET) | FED,
        bare={
            "self_attn.A_log": "ssm_a",
            "self_attn.dt_bias": "ssm_dt.bias",
            f"{MIXTURE}.gate.e_score_correction_bias": "exp_probs_b.bias",
        },
        expert=under(f"{MIXTURE}.experts.{{}}", MIXTRAL_EXPERT),
        convert=as_gguf,
        gguf_fields=gguf_fields,
    ),
    recurrent="delta net",
)
