"""granite: llama with factors of embeddings, scores, the outputs of attention and feed-forward, and logits."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.architectures import granite_factors
from aleator.models.config import Fields, GGUFFile, ModelConfig
from aleator.models.json_config import full_attention


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file, which may say that no layer rotates."""
    config = gguf_config.transformer(gguf, architecture)
    if not gguf.fields.get("granite.rope.scaling.finetuned", True):
        config = replace(config, unrotated=(True,) * config.n_layers)
    return granite_factors.in_gguf(config, gguf.fields)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    return granite_factors.in_json(full_attention(fields, architecture), fields)


GRANITE = Architecture(
    "granite",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(("granite",), read_json, gguf_fields=granite_factors.gguf_fields),
)
