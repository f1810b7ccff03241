"""jais: gpt2 with ALiBi, gates with SiLU, and scores divided by the size of a head; from GGUF."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture
from aleator.models.config import GGUFFile, ModelConfig


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture)
    alibi = gguf.fields.number("jais.attention.max_alibi_bias", 0.0, 1e3, 0.0)
    return replace(config, alibi=alibi, attention_scale=1.0 / config.head_dim)


JAIS = Architecture("jais", rope_style="none", read_gguf=read_gguf, norm="layer")
