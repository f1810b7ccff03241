"""qwen2vl: the text part of Qwen2-VL and Qwen2.5-VL, which is qwen2; pictures are left out.

A token of text has the same position along every axis of M-RoPE (Wang et al. 2024, arXiv:2409.12191), so it is
rotated as usual.  llama.cpp cannot shift positions of these models; a shift is refused here.  Unless prefixes
are cached, cells and llama.cpp's states keep what pictures need.
"""

from __future__ import annotations

from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.architectures import pictures
from aleator.models.config import Fields, ModelConfig
from aleator.models.conversions import axes, in_text_model, text_part
from aleator.models.json_config import full_attention, with_scaling

# Default number of layers without a window if config.json switches windows on, as in transformers.
MAX_WINDOW_LAYERS = 80
TEXT_TYPES = ("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_vl", "qwen2_5_vl")


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json, whose text part may be a section of its own."""
    fields = with_scaling(text_part(fields, *TEXT_TYPES), "default", ["mrope"])
    return full_attention(fields, architecture, max_window_layers=MAX_WINDOW_LAYERS)


QWEN2VL = Architecture(
    "qwen2vl",
    read_gguf=pictures.read_gguf,
    hugging_face=HuggingFace(
        ("qwen2_vl", "qwen2_5_vl", "qwen2_vl_text", "qwen2_5_vl_text"),
        read_json,
        usual_name=in_text_model,
        gguf_fields=axes,
    ),
    qkv_bias=True,
    shifts=False,
    position_axes=4,
)
