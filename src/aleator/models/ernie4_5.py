"""ernie4_5: llama with heads whose size is free of the width; Hugging Face's files rotate neighbours too."""

from __future__ import annotations

from dataclasses import replace

from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.config import ModelConfig
from aleator.models.files.fields import Fields
from aleator.models.json_config import full_attention

HEAD_DIM = 128  # where config.json says nothing


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    config = full_attention(fields, architecture, head_dim=HEAD_DIM)
    return replace(config, tied=fields.get("tie_word_embeddings", True))


ERNIE4_5 = Architecture(
    "ernie4_5",
    rope_style="norm",
    hugging_face=HuggingFace(("ernie4_5",), read_json, rope_style="norm"),
)
