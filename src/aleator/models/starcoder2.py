"""starcoder2: layer norms, biases everywhere, rotation, feed-forward without a gate.

llama.cpp does not use the window that these files name; for Hugging Face's files it counts.
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models import json_config
from aleator.models.architecture import TRANSFORMER, Architecture, HuggingFace
from aleator.models.config import ModelConfig
from aleator.models.files.fields import Fields


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    json_config.refuse_features(fields, activation="gelu_pytorch_tanh")
    config = json_config.transformer(fields, architecture, tied=True, eps="norm_epsilon")
    layers = [True] * config.n_layers
    return replace(config, window=json_config.read_windows(fields, config, layers))


STARCODER2 = Architecture(
    "starcoder2",
    hugging_face=HuggingFace(
        ("starcoder2",),
        read_json,
        layer=TRANSFORMER | {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
    ),
    norm="layer",
    gated=False,
    activation="gelu",
)
