"""qwen2vl: the text part of Qwen2-VL and Qwen2.5-VL, which is qwen2; pictures are left out.

A token of text has the same position along every axis of M-RoPE (Wang et al. 2024, arXiv:2409.12191), so it is
rotated as usual.  llama.cpp cannot shift positions of these models; a shift is refused here.  Unless prefixes
are cached, cells and llama.cpp's states keep what pictures need.
"""

from __future__ import annotations

from aleator.models import gguf_config
from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.config import ModelConfig
from aleator.models.conversions import axes, in_text_model, text_part
from aleator.models.files.fields import Fields
from aleator.models.files.gguf import GGUFFile
from aleator.models.json_config import full_attention

# Default number of layers without a window if config.json switches windows on, as in transformers.
MAX_WINDOW_LAYERS = 80
TEXT_TYPES = ("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_vl", "qwen2_5_vl")


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file, which must divide the channels among the axes."""
    config = gguf_config.transformer(gguf, architecture)
    key = "qwen2vl.rope.dimension_sections"
    sections = gguf.fields.require(key, list)
    if len(sections) > 4 or sum(sections) != config.rope.dim // 2:
        raise gguf.fields.error(
            key, f"{key} is {sections}; its parts must add up to {config.rope.dim // 2} pairs"
        )
    return config


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json, whose text part may be a section of its own."""
    if fields.get("text_config", kind=dict) is not None:
        fields = text_part(fields, TEXT_TYPES[0], TEXT_TYPES)
    values = dict(fields.values)
    for key in ("rope_parameters", "rope_scaling"):
        rope = fields.get(key, kind=dict)
        if rope and rope.get("rope_type", rope.get("type")) in ("mrope", "default"):
            values[key] = {**rope, "rope_type": "default"}
    fields = Fields(fields.path, values)
    return full_attention(fields, architecture, max_window_layers=MAX_WINDOW_LAYERS)


QWEN2VL = Architecture(
    "qwen2vl",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("qwen2_vl", "qwen2_5_vl", "qwen2_vl_text", "qwen2_5_vl_text"),
        read_json,
        ours=in_text_model,
        gguf_fields=axes,
    ),
    qkv_bias=True,
    shifts=False,
    position_axes=4,
)
