"""Weights used in their stored type on the CPU, straight from the file's memory map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

import aleator._native as _native
from aleator.core.arrays import Floats
from aleator.models.layers.layer_source import LayerSource, Matrix, matrix_of

if TYPE_CHECKING:
    from aleator.models.weights import Weights


class StoredWeight:
    """One matrix [n_out, n_in], and its bias if it has one, used in place.

    Attributes:
        matrix: the native form.
        bias: float32 [n_out], or None.
        n_out: width of the output.
        n_in: width of the input.
    """

    def __init__(self, matrix: Matrix) -> None:
        _, stored, self.bias = matrix
        self.n_out, self.n_in = stored.shape
        sizes = self.n_out, self.n_in
        self.matrix = _native.StoredMatrix(
            stored.data, stored.type, *sizes, self.bias, stored.order
        )


def stored_weight(
    weights: Weights, name: str, n_out: int, n_in: int, bias: bool = False
) -> StoredWeight:
    """See :func:`~aleator.models.layers.layer_source.matrix_of`."""
    return StoredWeight(matrix_of(weights, name, n_out, n_in, bias))


class StoredLayer(LayerSource[list[StoredWeight], Floats]):
    """The tensors of one layer as native code takes them."""

    def values(self, name: str, *shape: int, exact: bool = False) -> Floats:
        self.weights.expect(self.prefix + name, shape)
        read = self.weights.vector if exact else self.weights.floats
        return read(self.prefix + name)

    def flat(self, name: str, n: int) -> Floats:
        return self.values(name, *self.expect_size(name, n)).reshape(-1)

    def with_bias(self, weight: Floats, bias: Floats | None) -> Floats:
        return np.concatenate((weight, np.zeros_like(weight) if bias is None else bias), -1)

    def scaled(self, values: Floats, by: float) -> Floats:
        return values * np.float32(by)

    def ones(self, n: int) -> Floats:
        return np.ones(n, np.float32)

    def product(self, matrices: Sequence[Matrix]) -> list[StoredWeight]:
        return [StoredWeight(each) for each in matrices]
