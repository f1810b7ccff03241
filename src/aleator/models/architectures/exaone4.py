"""exaone4: norms after each part only, normalised heads; layers without a window are not rotated.

llama.cpp gives windows only to the model of 64 layers.  When positions are shifted it rotates the keys of the
layers without a window too; here they stay unrotated, as in a sequence computed afresh.
"""

from __future__ import annotations

from aleator.models import gguf_config, json_config
from aleator.models.architecture import (
    HEAD_NORMS,
    POST_NORMS,
    TRANSFORMER,
    Architecture,
    HuggingFace,
)
from aleator.models.architectures.rotating_windows import EVERY, WINDOW, in_json, with_windows
from aleator.models.config import Fields, GGUFFile, ModelConfig

LAYERS_WITH_WINDOWS = 64


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture)
    if config.n_layers != LAYERS_WITH_WINDOWS:
        return config
    fields = gguf.fields
    window = gguf_config.read_windows(fields, config, size=WINDOW, every=EVERY, own_base=False)
    return with_windows(config, window)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; a window of null means no window."""
    return in_json(fields, json_config.transformer(fields, architecture))


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
