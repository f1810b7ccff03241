"""mistral3 (Ministral 3): llama with YaRN and queries that grow with the position; pictures are left out."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config, json_config
from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.config import Fields, GGUFFile, ModelConfig, QueryGrowth
from aleator.models.conversions import in_text_model, text_part

# Defaults of transformers' Ministral3Config.
DEFAULTS = {
    "head_dim": 128,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture)
    rate = gguf.fields.number("mistral3.attention.temperature_scale", 0.0, 1e6, 0.0)
    growth = QueryGrowth(rate, config.rope.original_context) if rate else None
    return replace(config, query_growth=growth)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; of the text part if the model also reads pictures."""
    fields = text_part(fields, "ministral3", "mistral")
    grows = fields.get("model_type") == "ministral3"
    if grows:
        fields = fields.over(DEFAULTS)
    config = json_config.full_attention(fields, architecture, windows=True)
    rope = Fields(fields.path, fields.get("rope_parameters", kind=dict) or {})
    rate = rope.number("llama_4_scaling_beta", 0.0, 1e6, 0.0)
    growth = QueryGrowth(rate, config.rope.original_context) if rate and grows else None
    return replace(config, query_growth=growth)


def takes(fields: Fields) -> bool:
    """Whether a model's text part is not Mistral 4's."""
    text = fields.get("text_config", kind=dict) or {}
    return text.get("model_type") != "mistral4"


MISTRAL3 = Architecture(
    "mistral3",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("mistral3", "ministral3"),
        read_json,
        takes=takes,
        usual_name=in_text_model,
        gguf_fields=lambda config, _: {
            "attention.temperature_scale": config.query_growth.rate if config.query_growth else None
        },
    ),
)
