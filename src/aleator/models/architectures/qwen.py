"""qwen: llama with biases of queries, keys and values in one tensor (the first Qwen).

What the model's own code does in texts beyond ``seq_length`` (other frequencies, growing queries) is left out,
as in llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture, HuggingFace, outside
from aleator.models.config import MAX_THETA, Fields, GGUFFile, ModelConfig, refuse_others
from aleator.models.files.fields import Value
from aleator.models.json_config import full_attention

LAYER = {
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.w1": "ffn_up",
    "mlp.w2": "ffn_gate",
    "mlp.c_proj": "ffn_down",
}


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file, which says the width of gate and up together."""
    config = gguf_config.transformer(gguf, architecture)
    if any(width < 2 for width in config.n_ff):
        key = "qwen.feed_forward_length"
        raise gguf.fields.error(key, f"{key} is {config.n_ff[0]}; it must be 2 or more")
    return replace(config, n_ff=tuple(width // 2 for width in config.n_ff))


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json, which says that width too."""
    refuse_others(fields, {"rotary_pct": 1.0, "scale_attn_weights": True})
    width = fields.width("intermediate_size", low=2)
    longest = fields.length("max_position_embeddings", 8192)
    sizes = fields.changed(
        head_dim=fields.get("kv_channels"),
        intermediate_size=width // 2,
        max_position_embeddings=fields.length("seq_length", longest),
        rms_norm_eps=fields.number("layer_norm_epsilon", 0.0, 1.0, 1e-6),
        rope_theta=fields.number("rotary_emb_base", 1.0, MAX_THETA, 1e4),
    )
    return full_attention(sizes, architecture)


def gguf_fields(config: ModelConfig, _: Fields) -> Mapping[str, Value | None]:
    return {"feed_forward_length": 2 * config.n_ff[0]}


QWEN = Architecture(
    "qwen",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("qwen",),
        read_json,
        stack="transformer",
        layers="h",
        outer=outside("transformer.wte", "transformer.ln_f"),
        layer=LAYER,
        gguf_fields=gguf_fields,
    ),
    qkv_bias=True,
)
