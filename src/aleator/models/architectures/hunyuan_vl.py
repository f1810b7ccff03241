"""hunyuan_vl: the text part of Hunyuan's models with pictures, which is hunyuan-dense; see qwen2vl.

A token of text has its position along all axes, as in transformers, also along the fourth of HunyuanOCR;
llama.cpp has 0 there.
"""

from __future__ import annotations

from aleator.models import json_config
from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.architectures import hunyuan_files
from aleator.models.architectures.pictures import check_axes
from aleator.models.config import Fields, GGUFFile, ModelConfig
from aleator.models.conversions import axes, in_text_model, text_part

TEXT_TYPE = "hunyuan_vl_text"


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file, which must divide the channels among the axes."""
    config = hunyuan_files.read_gguf(gguf, architecture)
    check_axes(gguf.fields, config)
    return config


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json, whose text part may be a section of its own."""
    fields = text_part(fields, TEXT_TYPE, "hunyuan_vl")
    fields = json_config.with_scaling(fields, "dynamic", ["xdrope"])
    if fields.get("num_experts") == 1:  # as HunyuanOCR has it: a dense model
        fields = fields.changed(num_experts=0)
    return json_config.full_attention(fields, architecture, tied=True)


HUNYUAN_VL = Architecture(
    "hunyuan_vl",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("hunyuan_vl", TEXT_TYPE),
        read_json,
        layer=hunyuan_files.LAYER,
        usual_name=in_text_model,
        gguf_fields=axes,
    ),
    head_norm=True,
    head_norm_kind="rotated head",
    shifts=False,
    position_axes=4,
)
