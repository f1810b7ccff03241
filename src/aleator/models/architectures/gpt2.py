"""gpt2: layer norms, biases everywhere, a vector for every position, feed-forward without a gate.

Positions without a vector are refused.  A shift gives tokens other positions but does not change their keys
and values, as in llama.cpp.
"""

from __future__ import annotations

from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.architectures import gpt_files

GPT2 = Architecture(
    "gpt2",
    rope_style="none",
    hugging_face=HuggingFace(
        ("gpt2",),
        gpt_files.read_json,
        stack="transformer",
        layers="h",
        outer=gpt_files.OUTER,
        layer=gpt_files.LAYER,
        turned=True,
        usual_name=gpt_files.usual_name,
    ),
    norm="layer",
    gated=False,
    activation="gelu",
    position_embedding=True,
)
