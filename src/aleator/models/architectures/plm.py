"""plm: every head's keys and values computed from a few numbers, ReLU squared without a gate."""

from __future__ import annotations

from aleator.models import gguf_config, latent
from aleator.models.architecture import Architecture
from aleator.models.config import ModelConfig
from aleator.models.files.gguf import GGUFFile


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    return latent.in_gguf(gguf_config.transformer(gguf, architecture), gguf.fields)


PLM = Architecture(
    "plm",
    rope_style="norm",
    read_gguf=read_gguf,
    gated=False,
    activation="relu_squared",
)
