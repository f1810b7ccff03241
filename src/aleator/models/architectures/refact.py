"""refact: llama with attention that falls with the distance (ALiBi) instead of a rotation; from GGUF."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture
from aleator.models.config import GGUFFile, ModelConfig

ALIBI = 8.0


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    return replace(gguf_config.transformer(gguf, architecture), alibi=ALIBI)


REFACT = Architecture("refact", rope_style="none", read_gguf=read_gguf)
