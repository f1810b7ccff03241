"""smollm3: llama in which every fourth layer does not rotate queries and keys.

When positions are shifted llama.cpp rotates the keys of these layers too; here they stay unrotated, as in a
sequence computed afresh.
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config, json_config
from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.config import Fields, GGUFFile, ModelConfig

EVERY = 4


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture)
    layers = range(config.n_layers)
    return replace(config, unrotated=tuple((layer + 1) % EVERY == 0 for layer in layers))


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; by default layers that do not rotate have its window, if it is used."""
    config = json_config.full_attention(fields, architecture, tied=True)
    unrotated = json_config.unrotated_layers(fields, config.n_layers, EVERY)
    if fields.get("use_sliding_window", False):
        config = replace(config, window=json_config.read_windows(fields, config, unrotated))
    return replace(config, unrotated=unrotated)


SMOLLM3 = Architecture(
    "smollm3",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(("smollm3",), read_json),
)
