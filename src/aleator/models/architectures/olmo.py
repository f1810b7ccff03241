"""olmo: llama whose norms centre rows and have no weights; queries, keys and values may be clamped."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.config import Fields, GGUFFile, ModelConfig
from aleator.models.json_config import transformer

EPS = 1e-5  # of norms; config.json has none


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    clamp = gguf.fields.number("olmo.attention.clamp_kqv", 0.0, 1e6, 0.0)
    return replace(gguf_config.transformer(gguf, architecture), qkv_clamp=clamp)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    config = transformer(fields.changed(rms_norm_eps=EPS), architecture)
    return replace(config, qkv_clamp=fields.number("clip_qkv", 0.0, 1e6, 0.0))


OLMO = Architecture(
    "olmo",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("olmo",),
        read_json,
        gguf_fields=lambda config, _: {"attention.clamp_kqv": config.qkv_clamp or None},
    ),
    norm="layer",
    norm_weights=False,
)
