"""Weights used in their stored type on the CPU, straight from the file's memory map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

import aleator._native as _native
from aleator.models.layers.expert_tensors import ExpertMatrix, expert_tensors, matrix_of, stacked
from aleator.models.layers.layer_source import LayerSource

if TYPE_CHECKING:
    from aleator.models.weights import Weights

Floats = npt.NDArray[np.float32]


class StoredWeight:
    """One matrix [n_out, n_in], and its bias if it has one, used where they are.

    Attributes:
        matrix: the native form.
        bias: float32 [n_out], or None.
        n_out: width of the output.
        n_in: width of the input.
    """

    def __init__(self, matrix: ExpertMatrix) -> None:
        stored, self.bias = matrix
        self.n_out, self.n_in = stored.shape
        sizes = self.n_out, self.n_in
        self.matrix = _native.StoredMatrix(stored.data, stored.type, *sizes, self.bias)


def stored_weight(weights: Weights, name: str, n_out: int, n_in: int, bias: bool) -> StoredWeight:
    """See :func:`~aleator.models.layers.expert_tensors.matrix_of`."""
    return StoredWeight(matrix_of(weights, name, n_out, n_in, bias))


class StoredLayer(LayerSource[list[StoredWeight], Floats]):
    """The tensors of one layer as native code takes them."""

    def values(self, name: str, *shape: int, exact: bool = False) -> Floats:
        return floats(self.weights, self.prefix + name, shape)

    def flat(self, name: str, n: int) -> Floats:
        return self.values(name, *self.expect_size(name, n)).reshape(-1)

    def with_bias(self, weight: Floats, bias: Floats | None) -> Floats:
        return np.concatenate((weight, np.zeros_like(weight) if bias is None else bias), -1)

    def scaled(self, values: Floats, by: float) -> Floats:
        return values * np.float32(by)

    def ones(self, n: int) -> Floats:
        return np.ones(n, np.float32)

    def matrix(
        self, names: Sequence[str], n_in: int, n_outs: Sequence[int], *, bias: bool = False
    ) -> list[StoredWeight]:
        return [
            stored_weight(self.weights, self.prefix + name, n_out, n_in, bias)
            for name, n_out in zip(names, n_outs, strict=True)
        ]

    def stacked(self, name: str, n: int, n_in: int, n_out: int) -> list[list[StoredWeight]]:
        return [[StoredWeight((part, None))] for part in stacked(self, name, n, n_in, n_out)]

    def experts(
        self, names: Sequence[str], n_in: int, n_outs: Sequence[int], *, bias: bool = False
    ) -> list[list[StoredWeight]]:
        return [
            [StoredWeight(matrix) for matrix in matrices]
            for matrices in expert_tensors(self, names, n_in, n_outs, bias)
        ]


def floats(weights: Weights, name: str, shape: tuple[int, ...]) -> Floats:
    """A tensor of the file as float32, its shape checked."""
    weights.expect(name, shape)
    return weights.floats(name)
