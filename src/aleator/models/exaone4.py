"""exaone4: norms after each part only, normalised heads; layers without a window are not rotated.

llama.cpp gives windows only to the model of 64 layers.  When positions are shifted it rotates the keys of the
layers without a window too; here they stay unrotated, as in a sequence computed afresh.
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
from aleator.models.config import ModelConfig, WindowConfig
from aleator.models.files.fields import Fields
from aleator.models.files.gguf import GGUFFile

WINDOW, EVERY = 4096, 4
LAYERS_WITH_WINDOWS = 64


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture)
    if config.n_layers != LAYERS_WITH_WINDOWS:
        return config
    window = gguf_config.read_windows(gguf.fields, config, size=WINDOW, every=EVERY)
    if window is not None:  # llama.cpp reads another base and does not use it
        window = replace(window, rope=config.rope)
    return _with_windows(config, window)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; a window of null means no window."""
    json_config.refuse_features(fields)
    config = json_config.transformer(fields, architecture)
    if "sliding_window" in fields and fields.get("sliding_window") is None:
        return config
    if isinstance(fields.values.get("sliding_window_pattern"), str):  # "LLLG"
        every = len(fields.require("sliding_window_pattern", str)) or EVERY
    else:
        every = fields.layers("sliding_window_pattern", EVERY)
    layers = [(layer + 1) % every != 0 for layer in range(config.n_layers)]
    return _with_windows(config, json_config.read_windows(fields, config, layers, size=WINDOW))


def _with_windows(config: ModelConfig, window: WindowConfig | None) -> ModelConfig:
    """The model with windows; then layers without a window are not rotated."""
    if window is None:
        return config
    return replace(config, window=window, unrotated=tuple(not layer for layer in window.layers))


EXAONE4 = Architecture(
    "exaone4",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("exaone4",),
        read_json,
        layer=TRANSFORMER | HEAD_NORMS | POST_NORMS,
    ),
    pre_norm=False,
    post_norm=True,
    head_norm=True,
)
