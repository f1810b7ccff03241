"""eurobert: llama as an encoder, whose tokens see the whole text (EuroBERT, jina-embeddings-v5)."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.config import Fields, GGUFFile, ModelConfig
from aleator.models.json_config import transformer


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions of an encoder, which has no output matrix."""
    return replace(gguf_config.transformer(gguf, architecture), tied=True)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    return replace(transformer(fields, architecture), tied=True)


EUROBERT = Architecture(
    "eurobert",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(("eurobert",), read_json),
    causal=False,
)
