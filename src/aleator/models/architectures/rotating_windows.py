"""Windows in models whose other layers do not rotate queries and keys."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import json_config
from aleator.models.config import Fields, ModelConfig, WindowConfig

WINDOW, EVERY = 4096, 4


def in_json(fields: Fields, config: ModelConfig) -> ModelConfig:
    """The dimensions with the windows of a config.json of EXAONE 4 and later; a window of null means none."""
    if "sliding_window" in fields and fields.get("sliding_window") is None:
        return config
    if isinstance(fields.values.get("sliding_window_pattern"), str):  # "LLLG"
        every = len(fields.require("sliding_window_pattern", str)) or EVERY
    else:
        every = fields.layers("sliding_window_pattern", EVERY)
    layers = [(layer + 1) % every != 0 for layer in range(config.n_layers)]
    return rotating(config, json_config.read_windows(fields, config, layers, size=WINDOW))


def rotating(config: ModelConfig, window: WindowConfig | None) -> ModelConfig:
    """The model of which only layers with a window are rotated; None: no layer has one."""
    layers = (False,) * config.n_layers if window is None else window.layers
    return replace(config, window=window, unrotated=tuple(not layer for layer in layers))


def with_windows(config: ModelConfig, window: WindowConfig | None) -> ModelConfig:
    """The model of a GGUF file: :func:`rotating` if a layer has a window, else all layers are rotated."""
    return config if window is None else rotating(config, window)
