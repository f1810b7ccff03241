"""baichuan: llama with a rotation in the model of 32 layers, and ALiBi in that of 40 (7B, 13B).

GGUF files of others, which are not published, have neither, as in llama.cpp.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aleator.models import gguf_config
from aleator.models.architecture import TRANSFORMER, Architecture, HuggingFace
from aleator.models.config import Fields, GGUFFile, ModelConfig, StoredTensor
from aleator.models.json_config import full_attention

ALIBI = 8.0
SLOPED, ROTATED = 40, 32
"""Layers of the model with ALiBi, and of that with a rotation."""
BAICHUAN_2 = 125696
"""The tokens of Baichuan 2, whose rows of the output matrix are divided by their lengths."""


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture)
    n = config.n_layers
    unrotated = () if n == ROTATED else (True,) * n
    return replace(config, unrotated=unrotated, alibi=ALIBI if n == SLOPED else 0.0)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; only that of models with a rotation names a greatest position."""
    rotated = fields.get("max_position_embeddings") is not None
    if not rotated:
        fields = fields.changed(max_position_embeddings=fields.length("model_max_length", 4096))
    config = full_attention(fields, architecture)
    if rotated:
        return config
    return replace(config, unrotated=(True,) * config.n_layers, alibi=ALIBI)


def as_gguf(name: str, tensor: StoredTensor) -> StoredTensor:
    """Convert a tensor to GGUF's form, with what Baichuan 2 does to the output matrix in each step."""
    if name != "output.weight" or tensor.shape[0] != BAICHUAN_2:
        return tensor
    rows = tensor.floats()
    lengths = np.sqrt(np.square(rows, dtype=np.float64).sum(-1, keepdims=True))
    with np.errstate(invalid="ignore"):  # FiniteCheck finds infinities
        return StoredTensor.of((rows / np.maximum(lengths, 1e-12)).astype(np.float32))


BAICHUAN = Architecture(
    "baichuan",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("baichuan",),
        read_json,
        layer=TRANSFORMER | {"self_attn.W_pack": "attn_qkv"},
        convert=as_gguf,
    ),
)
