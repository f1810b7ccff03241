"""Sources of a layer's tensors, by name and shape.

Native decoders read stored matrices and NumPy's arrays (:mod:`aleator.models.layers.stored`), decoders in
PyTorch modules and tensors (:mod:`aleator.models.layers.layer`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

from aleator.core.arrays import Floats
from aleator.models.config import present
from aleator.models.files.tensor_types import StoredTensor

if TYPE_CHECKING:
    from aleator.models.weights import Weights

GATE_UP = ["ffn_gate", "ffn_up"]

M = TypeVar("M")
"""A product with one or more matrices that have the same input."""
V = TypeVar("V")
"""A vector or a small table of float32."""


class Matrix(NamedTuple):
    """A matrix [n_out, n_in] as the file stores it, unread."""

    name: str  # name of its tensor
    stored: StoredTensor
    bias: Floats | None  # float32 [n_out], if there is one


def matrix_of(
    weights: Weights, name: str, n_out: int, n_in: int, bias: bool = False, seldom: bool = False
) -> Matrix:
    """The matrix ``name.weight`` of the file, and ``name.bias`` if it exists or must.

    Matrices beyond a file's first bytes are checked for NaN later (:mod:`aleator.models.finite_check`); those
    ``seldom`` used are checked when rows of logits are not finite.
    """
    tensor, own = f"{name}.weight", f"{name}.bias"
    weights.expect(tensor, (n_out, n_in))
    weights.check.add(tensor, seldom)
    if bias or own in weights:
        weights.expect(own, (n_out,))
        return Matrix(tensor, weights.stored(tensor), weights.floats(own))
    return Matrix(tensor, weights.stored(tensor), None)


class LayerSource(ABC, Generic[M, V]):
    """The tensors of one layer, read and checked when they are asked for.

    A tensor that is missing, of another shape, or not finite raises FileFormatError, which names it.

    Names are without "blk.N.".

    Attributes:
        config: the model's dimensions.
        architecture: how its layers are made.
        layer: the layer's number; -1: the tensors are those outside the layers.
        kind: kind of the file, "gguf" or "safetensors".
    """

    def __init__(self, weights: Weights, layer: int) -> None:
        self.weights, self.prefix = weights, f"blk.{layer}." if layer >= 0 else ""
        self.config, self.architecture = weights.config, weights.architecture
        self.layer, self.kind = layer, weights.kind

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.weights

    @abstractmethod
    def values(self, name: str, *shape: int, exact: bool = False) -> V:
        """The tensor ``name`` of this shape; ``exact``: in float32 whatever the decoder's type."""

    def found(self, name: str, *shape: int) -> V | None:
        """The tensor ``name`` of this shape in float32; None: the file has none."""
        return self.values(name, *shape, exact=True) if name in self else None

    @abstractmethod
    def flat(self, name: str, n: int) -> V:
        """The tensor ``name`` of n elements, whatever its shape, as a vector of float32."""

    def expect_size(self, name: str, n: int) -> tuple[int, ...]:
        """The shape of the tensor ``name``, which must have n elements."""
        stored = self.weights.stored(self.prefix + name)
        if stored.n_elements != n:
            self.weights.expect(self.prefix + name, (n,))
        return stored.shape

    @abstractmethod
    def scaled(self, values: V, by: float) -> V:
        """The numbers times ``by``, which is rounded to their type."""

    @abstractmethod
    def ones(self, n: int) -> V:
        """The weights of a norm of n numbers that has none in the file."""

    @abstractmethod
    def product(self, matrices: Sequence[Matrix]) -> M:
        """The product with matrices that have the same input."""

    def matrix(
        self, names: Sequence[str], n_in: int, n_outs: Sequence[int], *, bias: bool = False
    ) -> M:
        """The matrices ``name.weight`` [n_out, n_in], which have the same input.

        ``bias``: every ``name.bias`` must exist; one that exists is used in any case.
        """
        listed = [(self.prefix + name, n) for name, n in zip(names, n_outs, strict=True)]
        return self.product([matrix_of(self.weights, name, n, n_in, bias) for name, n in listed])

    def constant(self, name: str) -> tuple[M, M]:
        """Two matrices of zeros through one channel, and ``name.bias``, which every token gets from them."""
        n, own = self.config.n_embd, self.prefix + name
        self.weights.expect(f"{own}.bias", (n,))
        up, down = (StoredTensor.of(np.zeros(shape, np.float32)) for shape in ((1, n), (n, 1)))
        bias = self.weights.floats(f"{own}.bias")
        return self.product([Matrix(own, up, None)]), self.product([Matrix(own, down, bias)])

    @abstractmethod
    def with_bias(self, weight: V, bias: V | None) -> V:
        """Weights and biases of a layer norm side by side; None: biases of 0."""

    def norm(self, name: str, *shape: int, exact: bool = False) -> V:
        """The normalisation ``name``: weights of ``shape`` or the width; after them a layer norm's biases."""
        sizes = shape or (self.config.n_embd,)
        if not self.architecture.norm_weights:
            return self.with_bias(self.ones(sizes[-1]), None)
        # GGUF files of falcon-h1 have a norm without ".weight" in its name.
        stored = name if name in self else f"{name}.weight"
        weight = self.values(stored, *sizes, exact=exact)
        if self.architecture.norm == "rms":
            return weight
        bias = self.values(f"{name}.bias", *sizes) if f"{name}.bias" in self else None
        return self.with_bias(weight, bias)

    def stacked(self, name: str, n: int, n_in: int, n_out: int) -> list[M]:
        """The matrices [n_out, n_in] of one tensor ``name.weight`` [n, n_out, n_in]."""
        return [self.product([each]) for each in self._stack(name, n, n_in, n_out)]

    def experts(
        self, names: Sequence[str], n_in: int, n_outs: Sequence[int], *, bias: bool = False
    ) -> list[M]:
        """The matrices of each expert, as :meth:`matrix` gives those of a layer.

        ``name_exps.weight`` [experts, n_out, n_in] has all experts, ``name.expert.weight`` has one; gate and up
        may be one tensor, ``ffn_gate_up_exps.weight``.  Experts that no token uses stay on disk.
        """
        n = present(self.config.experts).n_experts
        if list(names) == GATE_UP and "ffn_gate_up_exps.weight" in self:
            both = self._stack("ffn_gate_up_exps", n, n_in, sum(n_outs), bias, seldom=True)
            return [self.product(_divided(each, n_outs)) for each in both]
        columns: list[list[Matrix]] = []
        for name, n_out in zip(names, n_outs, strict=True):
            if f"{name}_exps.weight" in self or f"{name}.0.weight" not in self:
                columns.append(self._stack(f"{name}_exps", n, n_in, n_out, bias, seldom=True))
            else:
                each = [f"{self.prefix}{name}.{expert}" for expert in range(n)]
                apart = [matrix_of(self.weights, own, n_out, n_in, seldom=True) for own in each]
                columns.append(apart)
        return [self.product(matrices) for matrices in zip(*columns, strict=True)]

    def _stack(
        self, name: str, n: int, n_in: int, n_out: int, bias: bool = False, seldom: bool = False
    ) -> list[Matrix]:
        """The matrices of one tensor; see :func:`matrix_of`."""
        weights, tensor = self.weights, f"{self.prefix}{name}.weight"
        weights.expect(tensor, (n, n_out, n_in))
        weights.check.add(tensor, seldom)
        stored, own = weights.stored(tensor), f"{self.prefix}{name}.bias"
        biases: Iterable[Floats | None] = [None] * n
        if bias or own in weights:
            weights.expect(own, (n, n_out))
            biases = weights.floats(own)
        return [
            Matrix(tensor, StoredTensor(stored.type, (n_out, n_in), part), added)
            for part, added in zip(stored.data.reshape(n, -1), biases, strict=True)
        ]


def _divided(matrix: Matrix, n_outs: Sequence[int]) -> list[Matrix]:
    """Divide the rows of a matrix among several."""
    name, stored, bias = matrix
    ends = np.cumsum(n_outs)[:-1]
    parts = np.split(stored.data.reshape(sum(n_outs), -1), ends)
    biases = [None] * len(parts) if bias is None else np.split(bias, ends)
    return [
        Matrix(name, StoredTensor(stored.type, (len(part), stored.shape[1]), part.reshape(-1)), own)
        for part, own in zip(parts, biases, strict=True)
    ]


def mixed_experts(weights: Weights) -> str:
    """The first tensor of an expert whose type differs from the other experts'; "": none."""
    experts = weights.config.experts
    if experts is None:
        return ""
    for layer in range(weights.config.n_layers):
        for name in (*GATE_UP, "ffn_down"):
            first = f"blk.{layer}.{name}.0.weight"
            for expert in range(1, experts.n_experts if first in weights else 0):
                own = f"blk.{layer}.{name}.{expert}.weight"
                if own in weights and weights.stored(own).type != weights.stored(first).type:
                    return own
    return ""
