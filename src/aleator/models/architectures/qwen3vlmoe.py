"""qwen3vlmoe: the text part of Qwen3-VL with mixtures of experts, which is qwen3moe; see qwen2vl."""

from __future__ import annotations

from aleator.models import gguf_config
from aleator.models.architecture import Architecture
from aleator.models.architectures import pictures
from aleator.models.config import ModelConfig
from aleator.models.experts import in_gguf
from aleator.models.files.gguf import GGUFFile


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config, fields = gguf_config.transformer(gguf, architecture, experts=True), gguf.fields
    pictures.check_axes(fields, config)
    return in_gguf(config, fields, n_ff_used=config.n_ff[0], normalised=True)


QWEN3VLMOE = Architecture(
    "qwen3vlmoe", read_gguf=read_gguf, head_norm=True, shifts=False, position_axes=4
)
