"""spark2_5: windows, a gate for each head's output, and a gated feed-forward part with GELU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import TRANSFORMER, Architecture, HuggingFace
from aleator.models.config import Fields, GGUFFile, ModelConfig, check_rope_dim, refuse_others
from aleator.models.files.fields import Value
from aleator.models.json_config import read_rope, read_windows, rope_part, transformer

FIXED = {"gate_attn_act_mode": "sigmoid", "headwise_attn_output_gate": True}
"""Fields with a single value that is computed."""


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file; in windows another share of a head's channels may be rotated."""
    config, fields = gguf_config.transformer(gguf, architecture), gguf.fields
    fields.require("spark2_5.attention.sliding_window_pattern", list)
    size = fields.length("spark2_5.attention.sliding_window")
    key = "spark2_5.rope.dimension_count_swa"
    dim = fields.integer(key, 2, config.head_dim, config.rope.dim)
    check_rope_dim(fields, key, dim, config.head_dim)
    rope = replace(config.rope, dim=dim)
    return replace(config, window=gguf_config.read_windows(fields, config, size=size, rope=rope))


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json, with a rotation of each kind of layer."""
    refuse_others(fields, FIXED)
    whole = rope_part(fields, "full_attention")
    config = transformer(fields, architecture, rope=whole, rotated=1.0)
    part = rope_part(fields, "sliding_attention")
    rope = read_rope(part, config.head_dim, config.context_length, architecture, 1.0)
    window = read_windows(fields, config, [False] * config.n_layers, rope=rope)
    return replace(config, window=window)


def gguf_fields(config: ModelConfig, _: Fields) -> Mapping[str, Value | None]:
    return {"rope.dimension_count_swa": config.window.rope.dim if config.window else None}


SPARK2_5 = Architecture(
    "spark2_5",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("spark2_5",),
        read_json,
        layer=TRANSFORMER | {"self_attn.q_k_v_proj": "attn_qkv", "self_attn.g_proj": "attn_gate"},
        gguf_fields=gguf_fields,
    ),
    attention_gate=True,
    head_gates=True,
    activation="gelu_exact",
)
