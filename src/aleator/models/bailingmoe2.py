"""bailingmoe2: qwen3 with mixtures of experts after the first layers, and a shared expert (Ling 2, Ring 2).

Layers that predict further tokens are left out.
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture
from aleator.models.config import ModelConfig
from aleator.models.experts import after_dense
from aleator.models.files.gguf import GGUFFile


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file, which may give the shared expert a width of its own."""
    config, fields = gguf_config.transformer(gguf, architecture, experts=True), gguf.fields
    config, name = gguf_config.without_further(fields, config), architecture.name
    mixtures = after_dense(gguf, name, config.n_layers)
    wide = fields.width(f"{name}.expert_shared_feed_forward_length", mixtures.n_ff, low=0)
    shared = mixtures.n_ff_shared // mixtures.n_ff * (wide or mixtures.n_ff)
    return replace(config, experts=replace(mixtures, n_ff_shared=shared))


BAILINGMOE2 = Architecture("bailingmoe2", read_gguf=read_gguf, head_norm=True)
