"""openelm: llama with normalised heads, and layers of different numbers of heads and widths."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aleator.models.architecture import Architecture, HuggingFace, outside
from aleator.models.config import MAX_THETA, Fields, ModelConfig, check_groups, refuse_others
from aleator.models.files.fields import MAX_WIDTH
from aleator.models.json_config import transformer

FIXED = {
    "activation_fn_name": "swish",
    "ffn_with_glu": True,
    "normalize_qk_projections": True,
    "normalization_layer_name": "rms_norm",
}
"""Fields with a single value that is computed."""
LAYER = {
    "attn_norm": "attn_norm",
    "attn.qkv_proj": "attn_qkv",
    "attn.q_norm": "attn_q_norm",
    "attn.k_norm": "attn_k_norm",
    "attn.out_proj": "attn_output",
    "ffn_norm": "ffn_norm",
    "ffn.proj_1": "ffn_gate_up_shexp",
    "ffn.proj_2": "ffn_down",
}


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; widths are multiples of the model's, to the nearest of a step."""
    refuse_others(fields, FIXED)
    n, step = fields.layers("num_transformer_layers"), fields.width("ffn_dim_divisor")

    def each(key: str) -> list[Fields]:
        listed: list[Any] = fields.require(key, list)
        if len(listed) != n:
            raise fields.error(key, f"{key} has {len(listed)} entries for {n} layers")
        return [Fields(fields.path, {key: value}) for value in listed]

    heads, kv_heads = (
        tuple(of.integer(key, 1, MAX_WIDTH) for of in each(key))
        for key in ("num_query_heads", "num_kv_heads")
    )
    check_groups(fields, "num_kv_heads", heads, kv_heads)
    n_embd, widths = fields.width("model_dim"), []
    for of in each("ffn_multipliers"):
        wanted = of.number("ffn_multipliers", 1e-6, 1e6) * n_embd
        width = max(step, int(wanted + step / 2) // step * step)
        widths.append(width + step if width < 0.9 * wanted else width)
    sizes = fields.changed(
        num_hidden_layers=n,
        hidden_size=n_embd,
        num_attention_heads=max(heads),
        intermediate_size=max(widths),
        max_position_embeddings=fields.length("max_context_length"),
        rope_theta=fields.number("rope_freq_constant", 1.0, MAX_THETA, 1e4),
        tie_word_embeddings=fields.get("share_input_output_layers", True),
    )
    config = transformer(sizes.over({"rms_norm_eps": 1e-6}), architecture, tied=True)
    return replace(config, n_heads=heads, n_kv_heads=kv_heads, n_ff=tuple(widths))


OPENELM = Architecture(
    "openelm",
    hugging_face=HuggingFace(
        ("openelm",),
        read_json,
        stack="transformer",
        outer=outside("transformer.token_embeddings", "transformer.norm"),
        layer=LAYER,
    ),
    head_norm=True,
)
