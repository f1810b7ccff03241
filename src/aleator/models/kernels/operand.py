"""What matrices are multiplied by: rows, and what is done to them first."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from aleator.models.kernels import norms
from aleator.models.kernels.recurrent_parts import Convolution, PartNorm

MOST_PARTS = 3
"""The most steps that make what a matrix is multiplied by."""


class Operand(NamedTuple):
    """What a matrix is multiplied by, float32 [T, n_in], after what ``parts`` and then ``norm`` do to it."""

    x: torch.Tensor
    norm: norms.RowNorm | None = None
    # One after the other, at most MOST_PARTS; only the first may be a convolution
    parts: Sequence[PartNorm | Convolution] = ()
    activation: str = ""  # of the product, see :func:`~aleator.models.kernels.fused.product_of_few`
    gated: bool = False

    @property
    def arguments(self) -> tuple[Any, ...]:
        """For kernels: x, what is done to parts of it, weights of the norm, its eps, stride and width of x."""
        norm = self.norm
        weights = (None, None, 0.0) if norm is None else (norm.weight, norm.bias, norm.eps)
        before = tuple(of.arguments for of in self.parts) or None
        x = self.x if self.x.stride(1) == 1 else self.x.contiguous()
        return x, before, *weights, x.stride(0), x.shape[1]

    @property
    def constants(self) -> tuple[Any, ...]:
        """Constants of kernels: activation, norm, its width and groups at once, and those of all parts."""
        n = self.x.shape[1]
        norm = ("", 0) if self.norm is None else (self.norm.kind, n)
        none = [(0, False, "", 1, 1)] * (MOST_PARTS - len(self.parts))
        how = self.activation, self.gated, *norm, norms.groups_at_once(n)
        return *how, *itertools.chain(*(of.constants for of in self.parts), *none)
