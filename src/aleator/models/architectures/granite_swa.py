"""granite_swa: granite with windows, sinks, and layers that do not rotate; without experts."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config, json_config
from aleator.models.architecture import TRANSFORMER, Architecture, HuggingFace
from aleator.models.architectures import granite_factors
from aleator.models.config import MAX_THETA, Fields, GGUFFile, ModelConfig, unsupported
from aleator.models.files.fields import Value

EVERY, WINDOW = 4, 128
"""The first of so many layers sees everything, and the positions of a window, if config.json has none."""
PATTERN = "attention.rope_pattern"


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config, fields = gguf_config.transformer(gguf, architecture), gguf.fields
    fields.require("granite_swa.attention.sliding_window_pattern", list)
    size = fields.length("granite_swa.attention.sliding_window")
    config = replace(
        config, window=gguf_config.read_windows(fields, config, size=size, own_base=False)
    )
    key = f"granite_swa.{PATTERN}"
    rotated = fields.get(key, kind=list)
    if rotated is not None:
        if len(rotated) != config.n_layers or not all(type(each) is bool for each in rotated):
            raise fields.error(key, f"{key} must be {config.n_layers} booleans")
        config = replace(config, unrotated=tuple(not each for each in rotated))
    return granite_factors.in_gguf(config, fields)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; all layers that rotate must have one base."""
    n, key = fields.layers("num_hidden_layers"), "layer_rope_theta"
    bases = fields.get(key, kind=list) or []
    if bases and len(bases) != n:
        raise fields.error(key, f"{key} has {len(bases)} entries for {n} layers")
    numbers = [Fields(fields.path, {key: each}).number(key, 0.0, MAX_THETA) for each in bases]
    different = sorted(set(numbers) - {0.0})
    if len(different) > 1:
        raise unsupported(fields.path, f"several rotary bases ({key})")
    rope = fields.get("rope_parameters", kind=dict) or {}
    if different:
        fields = fields.changed(rope_parameters={**rope, "rope_theta": different[0]})
    config = json_config.transformer(fields, architecture, tied=True)
    layers = [layer % EVERY != 0 for layer in range(n)]
    window = json_config.read_windows(fields, config, layers, size=WINDOW)
    unrotated = tuple(number == 0.0 for number in numbers)
    config = replace(config, window=window, unrotated=unrotated if any(unrotated) else ())
    return granite_factors.in_json(config, fields)


def gguf_fields(config: ModelConfig, fields: Fields) -> dict[str, Value | None]:
    rotated = [not each for each in config.unrotated]
    return granite_factors.gguf_fields(config, fields) | {
        PATTERN: rotated or None, "rope.scaling.finetuned": None,
    }  # fmt: skip


GRANITE_SWA = Architecture(
    "granite_swa",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("granite_swa",),
        read_json,
        layer=TRANSFORMER,
        bare={"self_attn.sinks": "attn_sinks.weight"},
        gguf_fields=gguf_fields,
    ),
    sinks=True,
)
