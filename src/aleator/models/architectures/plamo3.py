"""plamo3: norms around each part, normalised heads, windows in seven of eight layers; from GGUF."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture
from aleator.models.config import GGUFFile, ModelConfig, RopeConfig

EVERY = 8  # the last of this many layers sees everything, unless the file says otherwise


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture)
    rope = replace(
        config.rope, theta=RopeConfig().theta
    )  # of windows, if the file has no other base
    window = gguf_config.read_windows(gguf.fields, config, every=EVERY, rope=rope)
    return replace(config, window=window)


PLAMO3 = Architecture(
    "plamo3", read_gguf=read_gguf, head_norm=True, post_norm=True, fused_gate=True
)
