"""command-r: layer norms without biases, attention and feed-forward side by side, scaled logits."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config, json_config
from aleator.models.architecture import HEAD_NORMS, TRANSFORMER, Architecture, HuggingFace
from aleator.models.config import Fields, GGUFFile, ModelConfig

LOGIT_SCALE = 0.0625  # if config.json has none


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file; a scale of 0 means no scale, as in llama.cpp."""
    config = gguf_config.transformer(gguf, architecture)
    scale = gguf.fields.number("command-r.logit_scale", 0.0, 1e6, 0.0)
    return replace(config, logit_scale=scale or 1.0)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    config = json_config.transformer(fields, architecture, tied=True, eps="layer_norm_eps")
    scale = fields.number("logit_scale", -1e6, 1e6, LOGIT_SCALE)
    return replace(config, logit_scale=scale)


COMMAND_R = Architecture(
    "command-r",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("cohere",),
        read_json,
        layer=TRANSFORMER | HEAD_NORMS,
        rope_style="norm",
        gguf_fields=lambda config, _: {"logit_scale": config.logit_scale},
    ),
    norm="layer",
    ffn_norm="",
    parallel=True,
    head_norm_kind="each",
)
