"""bailingmoe: llama with mixtures of experts and a shared expert in every layer (Ling 1)."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture
from aleator.models.config import ModelConfig, present
from aleator.models.experts import after_dense
from aleator.models.files.gguf import GGUFFile


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file; all layers have experts, whatever it says, as in llama.cpp."""
    config = gguf_config.transformer(gguf, architecture, experts=True)
    config = after_dense(config, gguf, scores="softmax")
    every = (True,) * config.n_layers
    mixtures = replace(present(config.experts), layers=every, choice_bias=False)
    return replace(config, experts=mixtures)


BAILINGMOE = Architecture("bailingmoe", rope_style="norm", read_gguf=read_gguf)
