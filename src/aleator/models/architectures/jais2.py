"""jais2: layer norms, biases everywhere, ReLU squared without a gate."""

from __future__ import annotations

from functools import partial

from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.json_config import full_attention

JAIS2 = Architecture(
    "jais2",
    hugging_face=HuggingFace(("jais2",), partial(full_attention, eps="layer_norm_eps")),
    norm="layer",
    gated=False,
    activation="relu_squared",
)
