"""starcoder: gpt2 whose query heads share one key and one value head (SantaCoder too)."""

from __future__ import annotations

from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.architectures import gpt_files
from aleator.models.config import Fields, ModelConfig, refuse_others


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    refuse_others(fields, {"multi_query": True})
    return gpt_files.read_json(fields, architecture, num_key_value_heads=1)


STARCODER = Architecture(
    "starcoder",
    rope_style="none",
    hugging_face=HuggingFace(
        ("gpt_bigcode",),
        read_json,
        stack="transformer",
        layers="h",
        outer=gpt_files.OUTER,
        layer=gpt_files.LAYER,
        usual_name=gpt_files.usual_name,
    ),
    norm="layer",
    gated=False,
    activation="gelu",
    position_embedding=True,
)
