"""chatglm: llama with half of a head's channels rotated, and gate and up in one tensor (GLM-4, ChatGLM 3).

Directories are those of transformers' own class; others, with code of their own, are read as GGUF.
"""

from __future__ import annotations

from functools import partial

from aleator.models.architecture import TRANSFORMER, Architecture, HuggingFace
from aleator.models.json_config import transformer

HEAD_DIM = 128  # if config.json has none
HALF = 0.5  # share of the channels, if config.json has none

CHATGLM = Architecture(
    "chatglm",
    rope_style="norm",
    hugging_face=HuggingFace(
        ("glm",),
        partial(transformer, head_dim=HEAD_DIM, rotated=HALF),
        layer=TRANSFORMER | {"mlp.gate_up_proj": "ffn_up"},
        rope_style="norm",
    ),
    fused_gate=True,
)
