"""dbrx: mixtures of experts in every layer, layer norms, clamped queries, keys and values."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture, HuggingFace, outside, under
from aleator.models.config import (
    MAX_THETA,
    Fields,
    GGUFFile,
    ModelConfig,
    refuse,
    refuse_others,
    unsupported,
)
from aleator.models.conversions import expert_by_expert
from aleator.models.experts import in_gguf, in_json
from aleator.models.files.fields import Value
from aleator.models.json_config import transformer

LAYER = {
    **under("norm_attn_norm", {"norm_1": "attn_norm", "norm_2": "attn_output_norm"}),
    **under("norm_attn_norm.attn", {"Wqkv": "attn_qkv", "out_proj": "attn_output"}),
    "ffn.router.layer": "ffn_gate_inp",
}
EXPERTS = {"w1": "ffn_gate_exps.weight", "v1": "ffn_up_exps.weight", "w2": "ffn_down_exps.weight"}


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture, experts=True)
    clamp = gguf.fields.number("dbrx.attention.clamp_kqv", 0.0, 1e6)
    mixed = in_gguf(config, gguf.fields, n_ff=config.n_ff[0], normalised=True)
    return replace(mixed, qkv_clamp=clamp)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; the epsilon is PyTorch's."""
    attention, ffn = (
        Fields(fields.path, fields.get(part, kind=dict) or {})
        for part in ("attn_config", "ffn_config")
    )
    refuse_others(Fields(fields.path, ffn.get("ffn_act_fn", {})), {"name": "silu"})
    refuse(ffn, "experts whatever the router says", "uniform_expert_assignment")
    order = ffn.values.get("moe_normalize_expert_weights", 1)
    if order not in (None, 1):
        raise unsupported(fields.path, f"moe_normalize_expert_weights = {order!r:.40}")
    sizes = fields.changed(
        num_hidden_layers=fields.layers("n_layers", 24),
        hidden_size=fields.width("d_model", 2048),
        num_attention_heads=fields.width("n_heads", 16),
        num_key_value_heads=attention.width("kv_n_heads", 1),
        intermediate_size=ffn.width("ffn_hidden_size", 3584),
        max_position_embeddings=fields.length("max_seq_len", 2048),
        rms_norm_eps=1e-5,
        rope_theta=attention.number("rope_theta", 1.0, MAX_THETA, 1e4),
        num_experts=ffn.width("moe_num_experts", 4),
        num_experts_per_tok=ffn.width("moe_top_k", 1),
    )
    clip = attention.get("clip_qkv", kind=float)
    config = replace(
        transformer(sizes, architecture, experts=True),
        qkv_clamp=0.0 if clip is None else attention.number("clip_qkv", 0.0, 1e6),
    )
    return in_json(config, sizes, (4, 1), normalised=order is not None)


def gguf_fields(config: ModelConfig, _: Fields) -> dict[str, Value | None]:
    return {"attention.clamp_kqv": config.qkv_clamp}


DBRX = Architecture(
    "dbrx",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("dbrx",),
        read_json,
        stack="transformer",
        layers="blocks",
        outer=outside("transformer.wte", "transformer.norm_f"),
        layer=LAYER,
        bare=under("ffn.experts.mlp", EXPERTS),
        move_rows=expert_by_expert,
        gguf_fields=gguf_fields,
    ),
    norm="layer",
    ffn_norm="attn_output_norm",
)
