"""olmo2: norms after attention and feed-forward only, and over the whole width of queries and keys.

Olmo 3 is the same with windows in three of four layers, whose rotation is not scaled.
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config, json_config
from aleator.models.architecture import (
    HEAD_NORMS,
    POST_NORMS,
    TRANSFORMER,
    Architecture,
    HuggingFace,
)
from aleator.models.config import Fields, GGUFFile, ModelConfig, unscaled

EVERY = 4  # the last of this many layers sees everything
WINDOW = 4096  # positions, if config.json has none


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture)
    window = gguf_config.read_windows(
        gguf.fields, config, every=EVERY, rope=unscaled(config.rope), own_base=False
    )
    return replace(config, window=window)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    full = json_config.rope_part(fields, "full_attention")
    config = json_config.transformer(fields, architecture, rope=full)
    if fields.get("model_type") != "olmo3":
        return config
    layers = [(layer + 1) % EVERY != 0 for layer in range(config.n_layers)]
    sliding = json_config.rope_part(fields, "sliding_attention")
    rope = unscaled(config.rope)
    if sliding is not fields:
        rope = json_config.read_rope(sliding, config.head_dim, config.context_length, architecture)
    window = json_config.read_windows(fields, config, layers, size=WINDOW, rope=rope)
    return replace(config, window=window)


OLMO2 = Architecture(
    "olmo2",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("olmo2", "olmo3"),
        read_json,
        layer=TRANSFORMER | HEAD_NORMS | POST_NORMS,
    ),
    pre_norm=False,
    post_norm=True,
    head_norm=True,
    head_norm_kind="all",
)
