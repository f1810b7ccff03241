"""qwen3vl: the text part of Qwen3-VL, which is qwen3; pictures are left out, see qwen2vl."""

from __future__ import annotations

from aleator.models.architecture import HEAD_NORMS, TRANSFORMER, Architecture, HuggingFace
from aleator.models.architectures import pictures
from aleator.models.config import Fields, ModelConfig
from aleator.models.conversions import axes, in_text_model, text_part
from aleator.models.json_config import full_attention, with_scaling

HEAD_DIM = 128  # if config.json has none, as in transformers
TEXT_TYPE = "qwen3_vl_text"


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json, whose text part may be a section of its own."""
    fields = with_scaling(text_part(fields, TEXT_TYPE, "qwen3_vl"), "default", ["mrope"])
    return full_attention(fields, architecture, head_dim=HEAD_DIM)


QWEN3VL = Architecture(
    "qwen3vl",
    read_gguf=pictures.read_gguf,
    hugging_face=HuggingFace(
        ("qwen3_vl", TEXT_TYPE),
        read_json,
        layer=TRANSFORMER | HEAD_NORMS,
        usual_name=in_text_model,
        gguf_fields=axes,
    ),
    head_norm=True,
    shifts=False,
    position_axes=4,
)
