"""spark2_5: windows, a gate for each head's output, and a gated feed-forward part with GELU; from GGUF."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture
from aleator.models.config import GGUFFile, ModelConfig, check_rope_dim


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


SPARK2_5 = Architecture(
    "spark2_5",
    read_gguf=read_gguf,
    attention_gate=True,
    head_gates=True,
    activation="gelu",
)
