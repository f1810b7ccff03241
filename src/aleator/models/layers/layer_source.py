"""Where the parts of a layer get their tensors from: by name and shape.

Native decoders read stored matrices and NumPy's arrays (:mod:`aleator.models.layers.stored`), decoders in
PyTorch modules and tensors (:mod:`aleator.models.layers.layer`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from aleator.models.weights import Weights

M = TypeVar("M")
"""What multiplies with one or more matrices that have the same input."""
V = TypeVar("V")
"""A vector or a small table of float32."""


class LayerSource(ABC, Generic[M, V]):
    """The tensors of one layer, read and checked when they are asked for.

    A tensor that is missing, of another shape, or not finite raises FileFormatError, which names it.

    Names are without "blk.N.".

    Attributes:
        config: the model's dimensions.
        architecture: how its layers are made.
        layer: the layer's number; -1: the tensors are those outside the layers.
        kind: of the file, "gguf" or "safetensors".
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
    def matrix(
        self, names: Sequence[str], n_in: int, n_outs: Sequence[int], *, bias: bool = False
    ) -> M:
        """The matrices ``name.weight`` [n_out, n_in], which have the same input.

        ``bias``: every ``name.bias`` must exist; one that exists is used in any case.
        """

    @abstractmethod
    def with_bias(self, weight: V, bias: V | None) -> V:
        """Weights and biases of a layer norm side by side; None: biases of 0."""

    def norm(self, name: str, *shape: int, exact: bool = False) -> V:
        """The normalisation ``name``: weights of ``shape`` or the width; after them a layer norm's biases."""
        sizes = shape or (self.config.n_embd,)
        # GGUF files of falcon-h1 have a norm without ".weight" in its name.
        stored = name if name in self else f"{name}.weight"
        weight = self.values(stored, *sizes, exact=exact)
        if self.architecture.norm == "rms":
            return weight
        bias = self.values(f"{name}.bias", *sizes) if f"{name}.bias" in self else None
        return self.with_bias(weight, bias)

    @abstractmethod
    def stacked(self, name: str, n: int, n_in: int, n_out: int) -> list[M]:
        """The matrices [n_out, n_in] of one tensor ``name.weight`` [n, n_out, n_in]."""

    @abstractmethod
    def experts(
        self, names: Sequence[str], n_in: int, n_outs: Sequence[int], *, bias: bool = False
    ) -> list[M]:
        """The matrices of each expert, as :meth:`matrix` gives those of a layer.

        Those of all experts are in ``name_exps.weight`` [experts, n_out, n_in], those of one in
        ``name.expert.weight``; gate and up may be one tensor, ``ffn_gate_up_exps.weight``.
        """
