"""lfm2: most layers keep a short convolution's inputs, every few attend."""

from aleator.models.architecture import HuggingFace
from aleator.models.architectures.short_convolutions import (
    CONVOLVED,
    LAYER,
    OUTER,
    read_gguf,
    read_json,
)
from aleator.models.state_space import as_gguf

LFM2 = CONVOLVED(
    "lfm2",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(("lfm2",), read_json, outer=OUTER, layer=LAYER, convert=as_gguf),
)
