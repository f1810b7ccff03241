"""qwen35moe: qwen35 with mixtures of experts in all layers.

One expert behind its own router takes every token.
"""

from __future__ import annotations

from functools import partial

from aleator.models.architecture import EXPERTS, Architecture, HuggingFace
from aleator.models.delta_net_files import BARE, LAYER, MIXTURE, STACKED, as_gguf
from aleator.models.qwen35_files import PROJECTIONS, ours, read_gguf, read_json

QWEN35MOE = Architecture(
    "qwen35moe",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("qwen3_5_moe", "qwen3_5_moe_text"),
        partial(read_json, experts=True),
        layer=LAYER | MIXTURE | PROJECTIONS,
        bare=BARE | STACKED,
        expert=EXPERTS,
        ours=ours,
        convert=as_gguf,
    ),
    ffn_norm="post_attention_norm",
    head_norm=True,
    attention_gate=True,
    shifts=False,
    position_axes=4,
    recurrent="delta net",
)
