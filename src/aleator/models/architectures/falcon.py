"""falcon: layer norms, feed-forward beside attention without a gate, few or one key head (Falcon 7B, 11B, 40B).

The larger models have a norm for each of both parts.  Models with ALiBi or one part after the other
(Falcon-RW) are refused.
"""

from __future__ import annotations

from aleator.models.architecture import Architecture, HuggingFace, outside
from aleator.models.config import Fields, ModelConfig, refuse, refuse_others
from aleator.models.conversions import heads_apart
from aleator.models.json_config import transformer

CONTEXT = 2048  # positions, if config.json has none


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    refuse(fields, "attention that falls with the distance", "alibi")
    n_embd, heads = fields.width("hidden_size"), fields.width("num_attention_heads")
    keys = fields.width("num_kv_heads", heads)
    if not fields.get("new_decoder_architecture", False):
        refuse_others(fields, {"parallel_attn": True})
        keys = 1 if fields.get("multi_query", True) else heads
    sizes = fields.changed(
        num_key_value_heads=keys,
        intermediate_size=fields.width("ffn_hidden_size", 4 * n_embd),
        max_position_embeddings=fields.length("max_position_embeddings", CONTEXT),
    )
    return transformer(
        sizes, architecture, activation="activation", tied=True, eps="layer_norm_epsilon"
    )


FALCON = Architecture(
    "falcon",
    hugging_face=HuggingFace(
        ("falcon",),
        read_json,
        stack="transformer",
        layers="h",
        outer=outside("transformer.word_embeddings", "transformer.ln_f"),
        layer={
            "input_layernorm": "attn_norm",
            "ln_mlp": "attn_norm",
            "ln_attn": "attn_norm_2",
            "self_attention.query_key_value": "attn_qkv",
            "self_attention.dense": "attn_output",
            "mlp.dense_h_to_4h": "ffn_up",
            "mlp.dense_4h_to_h": "ffn_down",
        },
        move_rows=heads_apart,
    ),
    norm="layer",
    attn_norm="attn_norm_2",
    ffn_norm="attn_norm",
    gated=False,
    activation="gelu_exact",
    parallel=True,
)
