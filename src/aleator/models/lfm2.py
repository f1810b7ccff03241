"""lfm2: most layers keep a short convolution's inputs, every few attend."""

from __future__ import annotations

from aleator.models.architecture import HuggingFace
from aleator.models.short_convolutions import LAYER, OUTER, architecture, read_gguf, read_json
from aleator.models.state_space import as_gguf

LFM2 = architecture(
    "lfm2",
    read_gguf,
    HuggingFace(("lfm2",), read_json, outer=OUTER, layer=LAYER, convert=as_gguf),
)
