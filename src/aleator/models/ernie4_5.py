"""ernie4_5: llama with heads whose size is free of the width; Hugging Face's files rotate neighbours too."""

from __future__ import annotations

from functools import partial

from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.json_config import full_attention

HEAD_DIM = 128  # where config.json says nothing

ERNIE4_5 = Architecture(
    "ernie4_5",
    rope_style="norm",
    hugging_face=HuggingFace(
        ("ernie4_5",), partial(full_attention, head_dim=HEAD_DIM, tied=True), rope_style="norm"
    ),
)
