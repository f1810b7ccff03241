"""nemotron: layer norms, a share of a head's channels rotated, ReLU squared without a gate (Minitron)."""

from __future__ import annotations

from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.config import ModelConfig
from aleator.models.conversions import whole_norms
from aleator.models.files.fields import Fields
from aleator.models.json_config import full_attention, rotated_share

HALF = 0.5  # share of the channels, if config.json has none


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    return full_attention(
        rotated_share(fields, HALF),
        architecture,
        eps="norm_eps",
        partial=True,
    )


NEMOTRON = Architecture(
    "nemotron",
    hugging_face=HuggingFace(("nemotron",), read_json, convert=whole_norms),
    norm="layer",
    gated=False,
    activation="relu_squared",
)
