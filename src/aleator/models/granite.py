"""granite: llama with factors of embeddings, attention's scores, what is added, and logits."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.config import ModelConfig
from aleator.models.files.fields import Fields
from aleator.models.files.gguf import GGUFFile
from aleator.models.json_config import full_attention


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file; a factor of 0 is none, as llama.cpp has it."""
    config, fields = gguf_config.transformer(gguf, architecture), gguf.fields
    name = architecture.name
    if not fields.get(f"{name}.rope.scaling.finetuned", True):
        config = replace(config, unrotated=(True,) * config.n_layers)
    return replace(
        config,
        attention_scale=fields.number(f"{name}.attention.scale", 0.0, 1e6, 0.0) or None,
        embedding_scale=fields.number(f"{name}.embedding_scale", 0.0, 1e6, 0.0) or 1.0,
        residual_scale=fields.number(f"{name}.residual_scale", 0.0, 1e6, 0.0) or 1.0,
        logit_scale=1.0 / fields.number(f"{name}.logit_scale", 1e-6, 1e6),
    )


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json."""
    config = full_attention(fields, architecture)
    return replace(
        config,
        attention_scale=fields.number("attention_multiplier", 1e-6, 1e6, 1.0),
        embedding_scale=fields.number("embedding_multiplier", 1e-6, 1e6, 1.0),
        residual_scale=fields.number("residual_multiplier", 1e-6, 1e6, 1.0),
        logit_scale=1.0 / fields.number("logits_scaling", 1e-6, 1e6, 1.0),
    )


GRANITE = Architecture(
    "granite",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(("granite",), read_json),
)
