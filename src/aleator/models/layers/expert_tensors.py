"""The matrices of a layer's experts, one by one, however the file holds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from aleator.core.errors import UnsupportedModel
from aleator.models.files.tensor_types import StoredTensor

if TYPE_CHECKING:
    from aleator.models.layers.layer_source import LayerSource
    from aleator.models.weights import Weights

Floats = npt.NDArray[np.float32]
ExpertMatrix = tuple[StoredTensor, Floats | None]
"""A matrix [n_out, n_in] as the file stores it, unread, and its bias if it has one."""
M = TypeVar("M")
V = TypeVar("V")
GATE_UP = ["ffn_gate", "ffn_up"]


def matrix_of(weights: Weights, name: str, n_out: int, n_in: int, bias: bool) -> ExpertMatrix:
    """The matrix ``name.weight`` of the file, and ``name.bias`` if it exists or must.

    What lies behind a file's first bytes is looked at for NaN later (:mod:`aleator.models.finite_check`).
    """
    tensor, own = f"{name}.weight", f"{name}.bias"
    weights.expect(tensor, (n_out, n_in))
    weights.check.add(tensor)
    added: Floats | None = None
    if bias or own in weights:
        weights.expect(own, (n_out,))
        added = weights.floats(own)
    return weights.stored(tensor), added


def expert_tensors(
    source: LayerSource[M, V], names: Sequence[str], n_in: int, n_outs: Sequence[int], bias: bool
) -> list[list[ExpertMatrix]]:
    """Of each expert a list with a matrix for each name, see :meth:`LayerSource.matrix`.

    NaN is looked for where rows of logits are not finite: what no token goes through stays on disk.
    """
    config = source.config.experts
    if config is None:
        raise UnsupportedModel("a layer with experts in a model without them")
    if list(names) == GATE_UP and "ffn_gate_up_exps.weight" in source:
        joined = _stacked(source, "ffn_gate_up", config.n_experts, n_in, sum(n_outs), bias)
        return [_divided(matrix, n_outs) for matrix in joined]
    columns = [
        _stacked(source, name, config.n_experts, n_in, n_out, bias)
        if f"{name}_exps.weight" in source or f"{name}.0.weight" not in source
        else _apart(source, name, config.n_experts, n_in, n_out)
        for name, n_out in zip(names, n_outs, strict=True)
    ]
    return [list(matrices) for matrices in zip(*columns, strict=True)]


def mixed_experts(weights: Weights) -> str:
    """The first tensor of an expert that is stored otherwise than the other experts'; "": none."""
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


def _stacked(
    source: LayerSource[M, V], name: str, n: int, n_in: int, n_out: int, bias: bool
) -> list[ExpertMatrix]:
    """Those of one tensor with a matrix for each expert."""
    weights, own = source.weights, f"{source.prefix}{name}_exps.bias"
    biases: Floats | None = None
    if bias or own in weights:
        weights.expect(own, (n, n_out))
        biases = weights.floats(own)
    parts = stacked(source, f"{name}_exps", n, n_in, n_out, seldom=True)
    return [(part, None if biases is None else biases[i]) for i, part in enumerate(parts)]


def stacked(
    source: LayerSource[M, V], name: str, n: int, n_in: int, n_out: int, seldom: bool = False
) -> list[StoredTensor]:
    """The matrices [n_out, n_in] of the tensor ``name.weight`` [n, n_out, n_in], unread.

    ``seldom``: not every token reads all of them, so NaN is looked for where rows of logits are not finite.
    """
    weights, tensor = source.weights, f"{source.prefix}{name}.weight"
    weights.expect(tensor, (n, n_out, n_in))
    weights.check.add(tensor, seldom=seldom)
    stored = weights.stored(tensor)
    return [StoredTensor(stored.type, (n_out, n_in), part) for part in stored.data.reshape(n, -1)]


def _apart(
    source: LayerSource[M, V], name: str, n: int, n_in: int, n_out: int
) -> list[ExpertMatrix]:
    """Those of a tensor for each expert."""
    made: list[ExpertMatrix] = []
    for expert in range(n):
        tensor = f"{source.prefix}{name}.{expert}.weight"
        source.weights.expect(tensor, (n_out, n_in))
        source.weights.check.add(tensor, seldom=True)
        made.append((source.weights.stored(tensor), None))
    return made


def _divided(matrix: ExpertMatrix, n_outs: Sequence[int]) -> list[ExpertMatrix]:
    """The rows of a matrix as several."""
    stored, bias = matrix
    rows, ends = stored.data.reshape(sum(n_outs), -1), np.cumsum(n_outs)[:-1]
    parts = np.split(rows, ends)
    biases = [None] * len(parts) if bias is None else np.split(bias, ends)
    return [
        (StoredTensor(stored.type, (len(part), stored.shape[1]), part.reshape(-1)), own)
        for part, own in zip(parts, biases, strict=True)
    ]
