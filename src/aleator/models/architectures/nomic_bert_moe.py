"""nomic-bert-moe: nomic-bert without gates, with mixtures of experts in every second layer; from GGUF."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture
from aleator.models.architectures.bert import ENCODER
from aleator.models.config import GGUFFile, ModelConfig
from aleator.models.experts import in_gguf


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions; as in llama.cpp, of every n layers the second has experts."""
    config, fields = gguf_config.transformer(gguf, architecture, experts=True), gguf.fields
    config = replace(config, tied=True)
    every = fields.layers("nomic-bert-moe.moe_every_n_layers", 0, low=0)
    layers = tuple(bool(every) and layer % every == 1 for layer in range(config.n_layers))
    return in_gguf(config, fields, layers, n_ff=config.n_ff[0]) if any(layers) else config


NOMIC_BERT_MOE = ENCODER(
    "nomic-bert-moe", read_gguf=read_gguf, gated=False, activation="gelu_exact"
)
