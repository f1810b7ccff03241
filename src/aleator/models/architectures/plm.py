"""plm: every head's keys and values computed from a few numbers, ReLU squared without a gate."""

from __future__ import annotations

from aleator.models import gguf_config, latent
from aleator.models.architecture import TRANSFORMER, Architecture, HuggingFace
from aleator.models.config import Fields, GGUFFile, ModelConfig


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    return latent.in_gguf(gguf_config.transformer(gguf, architecture), gguf.fields)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    return latent.in_json(fields, architecture)


PLM = Architecture(
    "plm",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("plm",),
        read_json,
        rope_style="norm",
        layer=TRANSFORMER | latent.LAYER,
        config_in_gguf=latent.uncompressed,
    ),
    gated=False,
    activation="relu_squared",
)
