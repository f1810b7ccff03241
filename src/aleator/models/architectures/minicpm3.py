"""minicpm3: compressed keys and values, and factors of embeddings, layers' outputs, and logits.

GGUF files lack the factors: MiniCPM3-4B's are used, as in llama.cpp.  With GGUF files the cache holds every
head's keys and values.
"""

from __future__ import annotations

import math
from dataclasses import replace

from aleator.models import gguf_config, latent
from aleator.models.architecture import TRANSFORMER, Architecture, HuggingFace
from aleator.models.config import Fields, GGUFFile, ModelConfig

SCALE_EMBEDDING, SCALE_DEPTH, MODEL_BASE = 12.0, 1.4, 256


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = latent.in_gguf(gguf_config.transformer(gguf, architecture), gguf.fields)
    return _scaled(config, SCALE_EMBEDDING, SCALE_DEPTH, MODEL_BASE)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; a factor of null does nothing, as in transformers."""
    config = latent.in_json(fields, architecture, tied=True)
    found = {"scale_depth": math.sqrt(config.n_layers), "dim_model_base": float(config.n_embd)}
    for key, default in (("scale_depth", SCALE_DEPTH), ("dim_model_base", float(MODEL_BASE))):
        if key not in fields or fields.values[key] is not None:
            found[key] = fields.number(key, 0.0, 1e6, default)
    embedding = fields.number("scale_emb", 0.0, 1e6, SCALE_EMBEDDING)
    return _scaled(config, embedding, found["scale_depth"], found["dim_model_base"])


def _scaled(config: ModelConfig, embedding: float, depth: float, base: float) -> ModelConfig:
    return replace(
        config,
        embedding_scale=embedding,
        residual_scale=depth / math.sqrt(config.n_layers),
        logit_scale=base / config.n_embd,
    )


MINICPM3 = Architecture(
    "minicpm3",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("minicpm3",),
        read_json,
        layer=TRANSFORMER | latent.LAYER,
        config_in_gguf=latent.uncompressed,
    ),
)
