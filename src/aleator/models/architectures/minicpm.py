"""minicpm: llama with granite's factors, except that of attention's scores."""

from __future__ import annotations

import math
from dataclasses import replace

from aleator.models import gguf_config, json_config
from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.config import GGUFFile, ModelConfig
from aleator.models.files.fields import Fields, Value


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file; factors that it lacks are those of MiniCPM 1, as in llama.cpp."""
    config, fields = gguf_config.transformer(gguf, architecture), gguf.fields
    name, depth = architecture.name, 1.4 / math.sqrt(config.n_layers)
    return replace(
        config,
        embedding_scale=fields.number(f"{name}.embedding_scale", 1e-6, 1e6, 12.0),
        residual_scale=fields.number(f"{name}.residual_scale", 1e-6, 1e6, depth),
        logit_scale=1.0 / fields.number(f"{name}.logit_scale", 1e-6, 1e6, 256.0 / config.n_embd),
    )


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    config = json_config.full_attention(fields, architecture, tied=True)
    return replace(
        config,
        embedding_scale=fields.number("scale_emb", 1e-6, 1e6),
        residual_scale=fields.number("scale_depth", 1e-6, 1e6) / math.sqrt(config.n_layers),
        logit_scale=fields.number("dim_model_base", 1.0, 1e6) / config.n_embd,
    )


def gguf_fields(config: ModelConfig, _: Fields) -> dict[str, Value | None]:
    return {
        "embedding_scale": config.embedding_scale,
        "residual_scale": config.residual_scale,
        "logit_scale": 1.0 / config.logit_scale,
    }


MINICPM = Architecture(
    "minicpm",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(("minicpm",), read_json, gguf_fields=gguf_fields),
)
