"""cohere2: command-r with windows, and every fourth layer without a window or a rotation (Command R7B, A)."""

from __future__ import annotations

from aleator.models import gguf_config, json_config
from aleator.models.architecture import TRANSFORMER, Architecture, HuggingFace
from aleator.models.architectures import command_r
from aleator.models.architectures.rotating_windows import EVERY, WINDOW, with_windows
from aleator.models.config import ModelConfig
from aleator.models.files.fields import Fields
from aleator.models.files.gguf import GGUFFile


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config, fields = command_r.read_gguf(gguf, architecture), gguf.fields
    window = gguf_config.read_windows(fields, config, size=WINDOW, every=EVERY, own_base=False)
    return with_windows(config, window)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    config = command_r.read_json(fields, architecture)
    every = fields.layers("sliding_window_pattern", EVERY)
    layers = [(layer + 1) % every != 0 for layer in range(config.n_layers)]
    return with_windows(config, json_config.read_windows(fields, config, layers, size=WINDOW))


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
    parallel=True,
)
