"""deepseek: llama with mixtures of experts after the first layers, and a shared expert (DeepSeekMoE)."""

from __future__ import annotations

from aleator.models import gguf_config
from aleator.models.architecture import Architecture
from aleator.models.config import ModelConfig
from aleator.models.experts import after_dense
from aleator.models.files.gguf import GGUFFile


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture, experts=True)
    return after_dense(config, gguf, scores="softmax", normalised=False)


DEEPSEEK = Architecture("deepseek", rope_style="norm", read_gguf=read_gguf)
