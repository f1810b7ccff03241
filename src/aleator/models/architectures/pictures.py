"""Reads what the files of models with pictures say of their text, for which all axes of M-RoPE are alike."""

from __future__ import annotations

from aleator.models import gguf_config
from aleator.models.architecture import Architecture
from aleator.models.config import Fields, GGUFFile, ModelConfig, unsupported


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file, which must divide the channels among the axes."""
    config = gguf_config.transformer(gguf, architecture)
    check_axes(gguf.fields, config)
    return config


def check_axes(fields: Fields, config: ModelConfig) -> None:
    """Check that a GGUF file divides the rotated channels among the axes."""
    key = f"{config.architecture}.rope.dimension_sections"
    sections = fields.require(key, list)
    whole = all(type(n) is int and n >= 0 for n in sections)
    if len(sections) > 4 or not whole or sum(sections) != config.rope.dim // 2:
        raise fields.error(
            key, f"{key} is {sections}; its parts must add up to {config.rope.dim // 2} pairs"
        )


def refuse_pictures(fields: Fields, name: str) -> None:
    """Raise UnsupportedModel if channels are divided among the axes of pictures."""
    key = f"{name}.rope.dimension_sections"
    if any((fields.get(key, kind=list) or [])[:2]):
        raise unsupported(fields.path, f"positions of pictures ({key})")
