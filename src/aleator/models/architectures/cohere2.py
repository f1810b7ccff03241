"""cohere2: command-r with windows, and every fourth layer without a window or a rotation (Command R7B, A)."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config, json_config
from aleator.models.architecture import TRANSFORMER, Architecture, HuggingFace
from aleator.models.architectures.rotating_windows import EVERY, WINDOW, rotating, with_windows
from aleator.models.config import Fields, GGUFFile, ModelConfig

LOGIT_SCALE = 0.0625  # if config.json has none


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file; a scale of 0 means no scale, as in llama.cpp."""
    config, fields = gguf_config.transformer(gguf, architecture), gguf.fields
    window = gguf_config.read_windows(fields, config, size=WINDOW, every=EVERY, own_base=False)
    scale = fields.number(f"{architecture.name}.logit_scale", 0.0, 1e6, 0.0)
    return with_windows(replace(config, logit_scale=scale or 1.0), window)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    config = json_config.transformer(fields, architecture, tied=True, eps="layer_norm_eps")
    scale = fields.number("logit_scale", -1e6, 1e6, LOGIT_SCALE)
    every = fields.layers("sliding_window_pattern", EVERY)
    layers = [(layer + 1) % every != 0 for layer in range(config.n_layers)]
    window = json_config.read_windows(fields, config, layers, size=WINDOW)
    return rotating(replace(config, logit_scale=scale), window)


COHERE2 = Architecture(
    "cohere2",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("cohere2",),
        read_json,
        layer=TRANSFORMER,
        rope_style="norm",
        gguf_fields=lambda config, _: {"logit_scale": config.logit_scale},
    ),
    norm="layer",
    ffn_norm="",
    parallel=True,
)
