"""qwen35moe: qwen35 with mixtures of experts in all layers.

One expert behind its own router takes every token.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from aleator.models.architecture import EXPERTS, STACKED, HuggingFace, under
from aleator.models.qwen3next import BARE, LAYER, MIXTURE, as_gguf
from aleator.models.qwen35 import PROJECTIONS, QWEN35, ours, read_json

QWEN35MOE = replace(
    QWEN35,
    name="qwen35moe",
    hugging_face=HuggingFace(
        ("qwen3_5_moe", "qwen3_5_moe_text"),
        partial(read_json, experts=True),
        layer=LAYER | MIXTURE | PROJECTIONS,
        bare=BARE | under("mlp", STACKED),
        expert=EXPERTS,
        ours=ours,
        convert=as_gguf,
    ),
)
