"""Fields and tensors of models with short convolutions, in GGUF files and Hugging Face's directories."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from aleator.models import gguf_config, json_config
from aleator.models.architecture import Architecture
from aleator.models.config import MAX_CONV, Fields, GGUFFile, ModelConfig, SSMConfig, unsupported

OUTER = {
    "model.embed_tokens": "token_embd",
    "model.embedding_norm": "token_embd_norm",
    "lm_head": "output",
}

LAYER = {
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
    "conv.in_proj": "shortconv.in_proj",
    "conv.conv": "shortconv.conv",
    "conv.out_proj": "shortconv.out_proj",
}
"""Hugging Face's names of tensors of a layer -> GGUF's."""


def read_gguf(gguf: GGUFFile, architecture: Architecture, *, experts: bool = False) -> ModelConfig:
    """The dimensions in a GGUF file; layers without KV heads keep a convolution's inputs."""
    fields, name = gguf.fields, architecture.name
    if not fields.get(f"{name}.attention.causal", True):
        raise unsupported(fields.path, f"tokens that see later ones ({name}.attention.causal)")
    # llama.cpp does not read the window of a mixture of experts.
    if not experts and fields.width(f"{name}.attention.sliding_window", 0, low=0):
        raise unsupported(
            fields.path, f"windows beside convolutions ({name}.attention.sliding_window)"
        )
    config = gguf_config.transformer(gguf, architecture, least_kv_heads=0, experts=experts)
    width = fields.integer(f"{name}.shortconv.l_cache", 2, MAX_CONV)
    return replace(config, ssm=SSMConfig(config.n_embd, width, 0))


def read_json(fields: Fields, architecture: Architecture, *, experts: bool = False) -> ModelConfig:
    """The dimensions in config.json, which has the feed-forward width before rounding."""
    wide = fields.width("intermediate_size", fields.get("block_ff_dim", kind=int))
    values = {**fields.values, "intermediate_size": wide}
    if "tie_embedding" in fields:
        values |= {"tie_word_embeddings": fields.get("tie_embedding", True)}
    fields = Fields(fields.path, values)
    config = json_config.transformer(
        fields, architecture, experts=experts, tied=True, eps="norm_eps"
    )
    if fields.get("block_auto_adjust_ff_dim", not experts):
        wide = int(2 * wide / 3)
        if fields.values.get("block_ffn_dim_multiplier", 1.0) is not None:  # null: no rounding
            wide = int(fields.number("block_ffn_dim_multiplier", 0.0, 1e3, 1.0) * wide)
            step = fields.width("block_multiple_of", 256)
            wide = -(-wide // step) * step
    attends = fields.get("full_attn_idxs", kind=list)
    states = json_config.listed_kinds(fields, config.n_layers, ("conv",), ("full_attention",))
    if states is None:
        states = tuple(
            attends is not None and layer not in attends for layer in range(config.n_layers)
        )
    return replace(
        config,
        n_kv_heads=config.kv_heads_beside(states),
        n_ff=(wide,) * config.n_layers,
        ssm=SSMConfig(config.n_embd, fields.integer("conv_L_cache", 2, MAX_CONV, 3), 0),
    )


CONVOLVED = partial(
    Architecture,
    output_norm="token_embd_norm",
    head_norm=True,
    recurrent="short convolution",
)
"""The facts that architectures with short convolutions have in common."""
