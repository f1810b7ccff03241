"""minicpm: llama with granite's factors, except that of attention's scores."""

from __future__ import annotations

import math
from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture
from aleator.models.config import ModelConfig
from aleator.models.files.gguf import GGUFFile


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


MINICPM = Architecture("minicpm", rope_style="norm", read_gguf=read_gguf)
