"""What few rows of a product are made from, for the product's own launch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from aleator.models.kernels.norms import RowNorm
from aleator.models.kernels.operand import MOST_PARTS, Operand
from aleator.models.kernels.planes import Planes
from aleator.models.kernels.recurrent_parts import PartNorm
from aleator.models.layers.linear import Linear
from aleator.models.layers.norms import Norm, as_it_is
from aleator.models.layers.operands import Activations, Factors, Residual, Sum
from aleator.models.triton.stacks import TritonLinear


def row_norm(norm: Norm) -> RowNorm | None:
    """The norm in the form that kernels take; None: there is none."""
    return norm if isinstance(norm, RowNorm) else None


def part_norms(norm: Norm) -> list[PartNorm]:
    """The norm if it is one of parts of rows."""
    return [norm] if isinstance(norm, PartNorm) else []


def operand(of: Factors) -> Operand:
    """What a product is made from, for kernels."""
    return Operand(of.x, row_norm(of.norm), part_norms(of.norm))


def alone(*matrices: Linear) -> list[Planes]:
    """The planes of matrices that have one type each and no order of columns; []: not all are so."""
    parts = [m.parts for m in matrices if isinstance(m, TritonLinear) and m.order is None]
    if [len(each) for each in parts] != [1] * len(matrices):
        return []
    return [each[0] for each in parts]


def sum_of(
    y: Activations, residual: Residual, kept: Tensor | None = None
) -> tuple[Tensor, list[PartNorm]] | None:
    """The rows that are taken, and what is done to them, to make a sum; None: not in a product's launch.

    ``kept``: where the sum is written to.
    """
    x, scale, norm, whole, own, first = residual
    found = [row_norm(of) for of in (norm, own) if of is not as_it_is]
    more = own is not as_it_is
    terms = [isinstance(y, Sum), first is not None, more]
    if any(of is None or of.kind != "rms" for of in found) or sum(terms) > 1:
        return None
    last = _step(x, norm, scale=scale, whole=whole, kept=kept)
    if isinstance(y, Sum):
        inner = sum_of(*y)
        if inner is None or len(inner[1]) == MOST_PARTS:
            return None
        return inner[0], [*inner[1], replace(last, residual=x)]
    if first is not None:
        return first, [_step(x, residual=x, scale=scale), replace(last, takes=y)]
    if more:
        return x, [_step(x, own), replace(last, takes=y)]
    return y, [replace(last, residual=x)]


def _step(x: Tensor, norm: Norm = as_it_is, **how: Any) -> PartNorm:
    """One step to a sum of rows as wide as those of ``x``."""
    of = row_norm(norm)
    weight, eps = (None, 0.0) if of is None else (of.weight, of.eps)
    return PartNorm(x.shape[1], weight, eps, kind="", **how)
