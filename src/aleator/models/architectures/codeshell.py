"""codeshell: layer norms, biases everywhere, rotation, feed-forward without a gate."""

from __future__ import annotations

from aleator.models.architecture import Architecture, HuggingFace, outside
from aleator.models.architectures import gpt_files
from aleator.models.config import Fields, ModelConfig, refuse_others


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    refuse_others(fields, {"group_query_attention": True, "position_embedding_type": "rope"})
    return gpt_files.read_json(
        fields, architecture, num_key_value_heads=fields.width("num_query_groups")
    )


CODESHELL = Architecture(
    "codeshell",
    hugging_face=HuggingFace(
        ("codeshell",),
        read_json,
        stack="transformer",
        layers="h",
        outer=outside("transformer.wte", "transformer.ln_f"),
        layer=gpt_files.LAYER,
        usual_name=gpt_files.usual_name,
    ),
    norm="layer",
    gated=False,
    activation="gelu",
)
