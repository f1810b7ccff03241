"""mellum: qwen3moe with windows, whose layers rotate without the scaling of the others (Mellum 2)."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture
from aleator.models.config import ModelConfig, unscaled
from aleator.models.experts import in_gguf
from aleator.models.files.gguf import GGUFFile

EVERY = 4


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture, experts=True)
    window = gguf_config.read_windows(
        gguf.fields, config, every=EVERY, rope=unscaled(config.rope), own_base=False
    )
    return in_gguf(replace(config, window=window), gguf.fields, normalised=True)


MELLUM = Architecture("mellum", read_gguf=read_gguf, head_norm=True)
