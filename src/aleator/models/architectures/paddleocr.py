"""paddleocr: the text part of PaddleOCR-VL, which is llama; pictures are left out, see qwen2vl."""

from __future__ import annotations

from aleator.models import json_config
from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.architectures import pictures
from aleator.models.config import Fields, ModelConfig
from aleator.models.conversions import axes, in_text_model, text_part

DEFAULTS = {"num_key_value_heads": 2, "rope_theta": 500000.0}
"""Of transformers' PaddleOCRTextConfig."""
HEAD_DIM = 128
TEXT_TYPE = "paddleocr_vl_text"


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json, whose text part may be a section of its own."""
    fields = text_part(fields, TEXT_TYPE, "paddleocr_vl").over(DEFAULTS)
    fields = json_config.with_scaling(fields, "default", ["mrope"])
    return json_config.full_attention(fields, architecture, head_dim=HEAD_DIM, tied=True)


PADDLEOCR = Architecture(
    "paddleocr",
    read_gguf=pictures.read_gguf,
    hugging_face=HuggingFace(
        ("paddleocr_vl", TEXT_TYPE), read_json, usual_name=in_text_model, gguf_fields=axes
    ),
    shifts=False,
    position_axes=4,
)
