"""lfm2: layers that keep a short convolution's inputs, every few attend instead."""

from __future__ import annotations

from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.short_convolutions import LAYER, OUTER, read_gguf, read_json
from aleator.models.state_space import as_gguf

LFM2 = Architecture(
    "lfm2",
    rope_style="neox",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("lfm2",),
        read_json,
        outer=OUTER,
        layer=LAYER,
        convert=as_gguf,
    ),
    output_norm="token_embd_norm",
    head_norm=True,
    recurrent="short convolution",
)
