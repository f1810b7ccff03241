"""smollm3: llama whose every fourth layer does not rotate queries and keys.

llama.cpp rotates the keys of these layers too when positions are shifted; here they stay as they are, as a text
computed afresh has them.
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config, json_config
from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.config import MAX_LAYERS, ModelConfig
from aleator.models.files.fields import Fields
from aleator.models.files.gguf import GGUFFile

EVERY = 4


def _unrotated(n_layers: int, every: int) -> tuple[bool, ...]:
    return tuple((layer + 1) % every == 0 for layer in range(n_layers))


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file."""
    config = gguf_config.transformer(gguf, architecture)
    return replace(config, unrotated=_unrotated(config.n_layers, EVERY))


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; by default layers that do not rotate have its window, if it is used."""
    config = json_config.full_attention(fields, architecture)
    config = replace(config, tied=fields.get("tie_word_embeddings", True))
    listed = fields.get("no_rope_layers", kind=list)
    if listed is None:
        every = fields.integer("no_rope_layer_interval", 1, MAX_LAYERS, EVERY)
        unrotated = _unrotated(config.n_layers, every)
    elif len(listed) != config.n_layers:
        raise fields.error(
            "no_rope_layers",
            f"no_rope_layers has {len(listed)} entries for {config.n_layers} layers",
        )
    else:
        unrotated = tuple(not rotated for rotated in listed)
    if fields.get("use_sliding_window", False):
        config = replace(config, window=json_config.read_windows(fields, config, unrotated))
    return replace(config, unrotated=unrotated)


SMOLLM3 = Architecture(
    "smollm3",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(("smollm3",), read_json),
)
