"""The tensors of models whose tokens have embeddings for each layer (gemma4's E2B and E4B)."""

from __future__ import annotations

from typing import Generic

from aleator.core.errors import UnsupportedModel
from aleator.models.config import ModelConfig, PerLayerConfig
from aleator.models.layers.layer_source import LayerSource, M, V
from aleator.models.layers.parts import gate_of

TABLE = "per_layer_token_embd"
"""GGUF's name of the embeddings, [n_vocab, layers * width]."""


class LayerEmbeddings(Generic[M, V]):
    """What all layers have in common, besides the table.

    Attributes:
        width: numbers that a token has for a layer.
        projection: of the usual embeddings, [layers * width, n_embd].
        norm: of each layer's part of what the projection gives, [width].
    """

    def __init__(self, source: LayerSource[M, V]) -> None:
        config = source.config
        self.width = per_layer(config).width
        n = config.n_layers * self.width
        self.projection = source.matrix(["per_layer_model_proj"], config.n_embd, [n])
        self.norm = source.norm("per_layer_proj_norm", self.width)


class LayerEmbedding(Generic[M, V]):
    """A layer's part, which adds norm(output(gate(project(x)) * embeddings)) to what the layer gives.

    Attributes:
        layer: the layer's number.
        project: to the embeddings' width.
        output: back to the model's.
        norm: normalisation of what ``output`` gives.
        gate: the activation, see :func:`~aleator.models.layers.parts.gate_of`.
    """

    def __init__(self, source: LayerSource[M, V]) -> None:
        config = source.config
        width = per_layer(config).width
        self.layer, self.gate = source.layer, gate_of(source)
        self.project = source.matrix(["inp_gate"], config.n_embd, [width])
        self.output = source.matrix(["proj"], width, [config.n_embd])
        self.norm = source.norm("post_norm")


def per_layer(config: ModelConfig) -> PerLayerConfig:
    """The dimensions of the embeddings of each layer."""
    if config.per_layer is None:
        raise UnsupportedModel("embeddings for each layer in a model that has none")
    return config.per_layer
