"""stablelm: layer norms, a share of a head's channels rotated, heads normalised each with its own weights.

Models whose feed-forward part takes attention's input (StableLM 2 12B) have no ``ffn_norm`` and are not read.
"""

from __future__ import annotations

from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.config import Fields, ModelConfig, refuse
from aleator.models.json_config import full_attention

QUARTER = 0.25  # share of the channels, if config.json has none


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    refuse(fields, "norms of each head", "qk_layernorm")
    refuse(fields, "a feed-forward part beside attention", "use_parallel_residual")
    return full_attention(fields, architecture, eps="layer_norm_eps", rotated=QUARTER)


STABLELM = Architecture(
    "stablelm",
    hugging_face=HuggingFace(("stablelm",), read_json),
    norm="layer",
    head_norm_kind="each",
)
