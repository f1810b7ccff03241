"""qwen35: the text part of Qwen3.5, gated delta nets and every fourth layer gated attention.

Pictures are left out.  Of text every axis of the interleaved M-RoPE has the same position, so that a part of a
head's channels is rotated as by the usual embedding.  llama.cpp cannot shift positions of these models; here it
is refused.  Its states keep further positions of each cell and are not read here.
"""

from __future__ import annotations

from functools import partial

from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.delta_net_files import BARE, LAYER, as_gguf
from aleator.models.qwen35_files import PROJECTIONS, ours, read_gguf, read_json

QWEN35 = Architecture(
    "qwen35",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("qwen3_5", "qwen3_5_text"),
        partial(read_json, experts=False),
        layer=LAYER | PROJECTIONS,
        bare=BARE,
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
