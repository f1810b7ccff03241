"""stablelm: layer norms, a share of a head's channels rotated, heads normalised each with its own weights.

In models without ``ffn_norm`` (StableLM 2 12B) the feed-forward part takes attention's input; from GGUF.
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.config import Fields, GGUFFile, ModelConfig, refuse
from aleator.models.json_config import full_attention

QUARTER = 0.25  # share of the channels, if config.json has none


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture)
    return replace(config, parallel="blk.0.ffn_norm.weight" not in gguf.tensors)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    refuse(fields, "norms of each head", "qk_layernorm")
    refuse(fields, "a feed-forward part beside attention", "use_parallel_residual")
    return full_attention(fields, architecture, eps="layer_norm_eps", rotated=QUARTER)


STABLELM = Architecture(
    "stablelm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(("stablelm",), read_json),
    norm="layer",
    head_norm_kind="each",
)
