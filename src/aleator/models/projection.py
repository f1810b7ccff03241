"""The dense layers behind the pooling, which make a text's vector of its pooled hidden states."""

from __future__ import annotations

import numpy as np

import aleator._native as _native
from aleator.core.arrays import Floats
from aleator.core.threads import pool as thread_pool
from aleator.models.layers.stored import StoredWeight, stored_weight
from aleator.models.weights import Weights


class Projection:
    """The dense layers of a model, if it has any (EmbeddingGemma, LaBSE).

    Attributes:
        width: of a text's vector.
    """

    def __init__(self, weights: Weights) -> None:
        self.width, self._layers = weights.config.n_embd, list[tuple[StoredWeight, str]]()
        for i, each in enumerate(weights.config.dense):
            layer = stored_weight(weights, f"dense_{i + 2}", each.n_out, self.width)
            self._layers.append((layer, each.activation))
            self.width = each.n_out
        if self._layers:
            weights.check.start()

    def __call__(self, states: Floats) -> Floats:
        """Vectors, float32 [n, width], of hidden states [n, n_embd]; without layers the states as they are."""
        for weight, activation in self._layers:
            states = product(weight, np.ascontiguousarray(states, np.float32))
            if activation == "tanh":
                _native.soften_logits(states, 1.0)
        return states


def product(weight: StoredWeight, x: Floats) -> Floats:
    """The product of a matrix with rows, float32 [n, n_out]."""
    made = np.empty((len(x), weight.n_out), np.float32)
    _native.linear(thread_pool(None), weight.matrix, x, made)
    return made
