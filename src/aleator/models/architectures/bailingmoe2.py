"""bailingmoe2: qwen3 with mixtures of experts after the first layers, and a shared expert (Ling 2, Ring 2).

Layers that predict further tokens are left out.
"""

from __future__ import annotations

from aleator.models import gguf_config
from aleator.models.architecture import Architecture
from aleator.models.config import ModelConfig
from aleator.models.experts import after_dense
from aleator.models.files.gguf import GGUFFile


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file, which may give the shared expert a width of its own."""
    config = gguf_config.transformer(gguf, architecture, experts=True)
    config = gguf_config.without_further(gguf.fields, config)
    return after_dense(config, gguf, own_width=True)


BAILINGMOE2 = Architecture("bailingmoe2", read_gguf=read_gguf, head_norm=True)
