"""seed_oss: qwen2 with a head size independent of the width."""

from __future__ import annotations

from functools import partial

from aleator.models.architecture import TRANSFORMER, Architecture, HuggingFace
from aleator.models.json_config import full_attention

HEAD_DIM = 128  # if config.json has none

SEED_OSS = Architecture(
    "seed_oss",
    ffn_norm="post_attention_norm",
    hugging_face=HuggingFace(
        ("seed_oss",),
        partial(full_attention, head_dim=HEAD_DIM),
        layer=TRANSFORMER | {"post_attention_layernorm": "post_attention_norm"},
    ),
)
