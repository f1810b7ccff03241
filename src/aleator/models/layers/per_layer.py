"""Embeddings of tokens for each layer in PyTorch: the definition of what native code computes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from aleator.models.config import present
from aleator.models.layers.norms import as_it_is
from aleator.models.layers.operands import Activations, Residual
from aleator.models.layers.parts import TABLE, LayerEmbedding, LayerEmbeddings

if TYPE_CHECKING:
    from aleator.models.layers.layer import LayerWeights


class TokenEmbeddings:
    """Embeddings of a micro-batch's tokens for each layer."""

    def __init__(self, outside: LayerWeights) -> None:
        config = outside.config
        parts = LayerEmbeddings(outside)
        self.width, self.projection = parts.width, parts.projection
        self.norm = outside.ops.norm("rms", parts.norm, config.rms_eps)
        self.factor = float(np.float32(1) / np.sqrt(np.float32(config.n_embd)))
        shape = (present(config.per_layer).n_vocab, config.n_layers * parts.width)
        self.table = outside.embedding(TABLE, shape)

    def __call__(self, ids: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
        """The numbers of every token and layer, [T, layers, width].

        Without ``ids`` every token counts as token 0, as in llama.cpp; ``x`` is the first layer's input.
        """
        if ids is None:
            ids = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        projected = self.projection(x) * self.factor
        given = self.norm(projected.view(len(x), -1, self.width))
        own = self.table(ids).view_as(given) * math.sqrt(self.width)
        return (given + own) * (1.0 / math.sqrt(2.0))


class EmbeddingPart:
    """A layer's part: it gates the tokens' embeddings and adds them to the layer's output."""

    def __init__(self, weights: LayerWeights) -> None:
        parts = LayerEmbedding(weights)
        self.layer, self.kind = parts.layer, parts.gate
        self.project, self.output = parts.project, parts.output
        self.ops = weights.ops
        self.norm = self.ops.norm("rms", parts.norm, weights.config.rms_eps)

    def __call__(
        self, x: Activations, embeddings: torch.Tensor, whole: torch.Tensor | None
    ) -> Activations:
        """[T, n_embd] and [T, layers, width] -> [T, n_embd], times ``whole`` [1] if there is one."""
        x, y = self.ops.taken(x, self.project, as_it_is)
        gate = self.ops.gate(y[:, None], self.kind)
        y = self.ops.product(self.output, embeddings[:, self.layer], gate)
        return self.ops.left(y, Residual(x, norm=self.norm, whole=whole))
