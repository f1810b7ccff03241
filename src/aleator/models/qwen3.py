"""qwen3: RMS-normalised query and key heads, no bias, and heads whose size is free of the width."""

from __future__ import annotations

from functools import partial

from aleator.models.architecture import HEAD_NORMS, TRANSFORMER, Architecture, HuggingFace
from aleator.models.json_config import full_attention

# transformers' configuration has a head size of its own, whatever the width.
HEAD_DIM = 128
# Layers without a window where config.json switches windows on and says nothing, as transformers has it.
MAX_WINDOW_LAYERS = 28

QWEN3 = Architecture(
    "qwen3",
    head_norm=True,
    hugging_face=HuggingFace(
        ("qwen3",),
        partial(full_attention, head_dim=HEAD_DIM, max_window_layers=MAX_WINDOW_LAYERS),
        layer=TRANSFORMER | HEAD_NORMS,
    ),
)
