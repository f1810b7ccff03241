"""qwen: llama with biases of queries, keys and values in one tensor (the first Qwen); from GGUF."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture
from aleator.models.config import GGUFFile, ModelConfig


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file, which says the width of gate and up together."""
    config = gguf_config.transformer(gguf, architecture)
    if any(width < 2 for width in config.n_ff):
        key = "qwen.feed_forward_length"
        raise gguf.fields.error(key, f"{key} is {config.n_ff[0]}; it must be 2 or more")
    return replace(config, n_ff=tuple(width // 2 for width in config.n_ff))


QWEN = Architecture("qwen", read_gguf=read_gguf, qkv_bias=True)
