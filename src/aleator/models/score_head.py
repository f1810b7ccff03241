"""The part of a model that makes a score of a hidden state: of how well a document answers a query."""

from __future__ import annotations

import math

import numpy as np

import aleator._native as _native
from aleator.core.arrays import Floats
from aleator.core.errors import UnsupportedModel
from aleator.models.layers.stored import StoredLayer, StoredWeight, stored_weight
from aleator.models.projection import product
from aleator.models.weights import Weights

OUTPUT, DENSE, NORM = "cls.output", "cls", "cls.norm"
ANSWERS = ("yes", "no")
"""The tokens by which decoders rank, in the order of a head's rows."""


class ScoreHead:
    """A dense layer with an activation and a norm, where the file has these, and a row that makes the score.

    Decoders of the kind of Qwen3-Reranker have two rows, of "yes" and "no"; the score is the probability of the
    first.

    Attributes:
        pooling: which hidden state is scored, see :class:`~aleator.models.config.ModelConfig`.
        probability: scores are probabilities; otherwise any numbers, larger ones for better answers.
    """

    def __init__(self, weights: Weights) -> None:
        config, architecture = weights.config, weights.architecture
        self.pooling, self._eps = pooling_of(weights), config.rms_eps
        rows = {
            name: weights.stored(f"{name}.weight").shape[0]
            for name in (DENSE, OUTPUT)
            if f"{name}.weight" in weights
        }
        n = rows.get(OUTPUT, rows.get(DENSE, 0))
        self.probability = architecture.causal and n == 2
        if n != 1 and not self.probability:
            raise UnsupportedModel(
                f"{weights.path}: a head with {n} outputs (cls.output.weight), which are classes: rank with 1"
            )
        self._dense: StoredWeight | None = None
        self._output: StoredWeight | None = None
        width = config.n_embd
        if DENSE in rows:
            self._dense = stored_weight(weights, DENSE, rows[DENSE], width)
            width = rows[DENSE]
        if OUTPUT in rows:
            self._output = stored_weight(weights, OUTPUT, n, width)
        self._norm: Floats | None = None
        if f"{NORM}.weight" in weights:
            self._norm = StoredLayer(weights, -1).norm(NORM, width)
        gelu = "gelu_exact" if weights.kind == "safetensors" else "gelu_rounded"
        self._activation = gelu if architecture.score_activation == "gelu" else "tanh"
        weights.check.start()

    def score(self, state: Floats) -> float:
        """The score of a hidden state, float32 [n_embd]."""
        x = np.ascontiguousarray(state[None])
        if self._dense is not None:
            x = product(self._dense, x)
            if self._activation == "tanh":
                _native.soften_logits(x, 1.0)
            else:
                _native.activate(self._activation, x[0], np.ones(x.shape[1], np.float32))
            if self._norm is not None:
                _native.layer_norm(x, self._norm, self._eps)
        if self._output is not None:
            x = product(self._output, x)
        return (
            yes_probability(float(x[0, 0]), float(x[0, 1])) if self.probability else float(x[0, 0])
        )


def pooling_of(weights: Weights) -> str:
    """Which hidden state is scored."""
    default = "last" if weights.architecture.causal else "cls"
    return weights.config.score_pooling or default


def has_head(weights: Weights) -> bool:
    """Whether a file has a head that makes scores."""
    if f"{OUTPUT}.weight" in weights:
        return True
    dense = f"{DENSE}.weight"
    return dense in weights and weights.stored(dense).shape[0] == 1


def yes_probability(yes: float, no: float) -> float:
    """The probability of "yes", of the two logits."""
    return sigmoid(yes - no)


def sigmoid(x: float) -> float:
    """1 / (1 + e^-x), without overflow."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
