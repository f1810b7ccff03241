"""qwen3: RMS-normalised query and key heads, no bias, and heads whose size is free of the width."""

from __future__ import annotations

from functools import partial

from aleator.models.architecture import TRANSFORMER, Architecture, HuggingFace
from aleator.models.json_config import full_attention

# transformers' configuration has a head size of its own, whatever the width.
HEAD_DIM = 128
HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}

QWEN3 = Architecture(
    "qwen3",
    head_norm=True,
    hugging_face=HuggingFace(
        ("qwen3",), partial(full_attention, head_dim=HEAD_DIM), layer=TRANSFORMER | HEAD_NORMS
    ),
)
