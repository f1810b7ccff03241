"""arcee: llama whose feed-forward part has no gate and uses ReLU squared."""

from __future__ import annotations

from functools import partial

from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.json_config import RELU_SQUARED, full_attention

ARCEE = Architecture(
    "arcee",
    rope_style="norm",
    hugging_face=HuggingFace(("arcee",), partial(full_attention, activation=RELU_SQUARED)),
    gated=False,
    activation="relu_squared",
)
