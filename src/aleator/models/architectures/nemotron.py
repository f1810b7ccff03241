"""nemotron: layer norms, a share of a head's channels rotated, ReLU squared without a gate (Minitron)."""

from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.conversions import whole_norms

HALF = 0.5  # share of the channels, if config.json has none

NEMOTRON = Architecture(
    "nemotron",
    hugging_face=HuggingFace(
        ("nemotron",), options={"eps": "norm_eps", "rotated": HALF}, convert=whole_norms
    ),
    norm="layer",
    gated=False,
    activation="relu_squared",
)
