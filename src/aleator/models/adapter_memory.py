"""Where adapters' numbers lie in memory, and in which type."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import aleator._native as _native
from aleator.core.errors import FileFormatError, ParameterError
from aleator.core.large_pages import zeros_in_large_pages
from aleator.core.threads import pool
from aleator.models import adapted
from aleator.models.adapters import LowRank
from aleator.models.files.tensor_types import (
    FLOAT_TYPES,
    SCALED_TYPES,
    TENSOR_TYPES,
    StoredTensor,
)

KEPT = (*FLOAT_TYPES, "Q8_0")
"""Types whose numbers are read as they are stored; those of others are widened to F32."""
_WITH_FLOATS = (*FLOAT_TYPES, *SCALED_TYPES)
"""Types of matrices whose products take float32."""
_HIGHEST = 15
"""The power of two below which numbers lie before they are rounded to Q8_0, whose scales are float16."""
_LEAST_FACTOR = 2.0**-100
"""The least of a matrix's factors, whose products with scales float32 holds; its inverse is the highest."""
_UNEVEN = 8
"""How far products of numbers of A and B at one place of the rank may be below those of the largest of each."""
_SIXTEEN, _BLOCK, _BLOCK_BYTES = 16, TENSOR_TYPES["Q8_0"].block, TENSOR_TYPES["Q8_0"].size


def words(tensor: StoredTensor) -> NDArray[Any]:
    """The rows of a matrix in a type that is kept: the bits of its numbers, or the bytes of its blocks."""
    kind = {"F32": np.uint32, "Q8_0": np.uint8}.get(tensor.type, np.uint16)
    return tensor.data.view(kind).reshape(tensor.shape[0], -1)


def columns(rows: NDArray[Any], kind: str, rank: int) -> StoredTensor:
    """B as native code reads it (LowRank of native/layers/adapters.hpp), from the words of its rows."""
    n = -(-len(rows) // _SIXTEEN)
    padded = np.zeros((n * _SIXTEEN, rows.shape[1]), rows.dtype)
    padded[: len(rows)] = rows
    made = padded.reshape(n, _SIXTEEN, -1).swapaxes(1, 2)
    if kind == "Q8_0":
        blocks = made.reshape(n, -1, _BLOCK_BYTES, _SIXTEEN)
        scales = blocks[:, :, :2].swapaxes(2, 3).reshape(n, -1, 2 * _SIXTEEN)
        codes = blocks[:, :, 2:].reshape(n, -1, _BLOCK * _SIXTEEN)
        used = _SIXTEEN * rank + scales[0].size
        made = np.concatenate((scales, codes), axis=2).reshape(n, -1)[:, :used]
    data = np.ascontiguousarray(made).reshape(-1).view(np.uint8)
    return StoredTensor(kind, (n * rank, _SIXTEEN), data)


def with_magnitudes(
    path: Path,
    name: str,
    base: StoredTensor,
    a: StoredTensor,
    b: NDArray[np.float32],
    scale: float,
    *,
    of_inputs: bool,
) -> LowRank:
    """DoRA: the base and what A and B add, each row as long as its number in the last column of B.

    ``of_inputs``: each column, as long as its number in the last row of A.  Then what W x grows by is part of
    the product.

    FileFormatError: a row of zeros.
    """
    whole, rows, by = base.floats(), a.floats(), np.float32(scale)
    if of_inputs:
        rows, sizes = np.split(rows, [-1])
        sums = (whole + by * (b @ rows)).T
    else:
        b, sizes = np.split(b, [-1], axis=1)
        sums = whole + by * (b @ rows)
    with np.errstate(divide="ignore", invalid="ignore"):
        growth = sizes.reshape(-1) / np.sqrt((sums.astype(np.float64) ** 2).sum(1))
    if not np.isfinite(growth).all():
        raise FileFormatError(path, "a row of zeros cannot be normalised", field=name)
    if not of_inputs:
        grown = (b * growth[:, None]).astype(np.float32)
        made = columns(grown.view(np.uint32), "F32", b.shape[1])
        return LowRank(a, made, scale, (growth - 1).astype(np.float32))
    grown = np.concatenate((np.diag(growth - 1), rows * growth)).astype(np.float32)
    both = np.concatenate((whole, by * b), axis=1).view(np.uint32)
    return LowRank(StoredTensor.of(grown), columns(both, "F32", len(grown)), 1.0)


def kept(path: Path, name: str, matrix: LowRank, kind: str, base: StoredTensor) -> LowRank:
    """The matrix with its numbers in the type in which they are kept, beside the base's matrix.

    ``kind``: "auto", beside a base whose activations are rounded those that Q8_0 holds become Q8_0's; "stored",
    all stay as they are; "f16", those that take 32 bits become the nearest of F16; "q8_0", all become Q8_0's,
    and what Q8_0 does not hold is rounded as with "f16".
    """
    if kind == "q8_0" or (kind == "auto" and base.type not in _WITH_FLOATS):
        matrix = _in_blocks(matrix, name == adapted.EMBEDDING)
    if kind in ("auto", "stored"):
        return matrix
    made = []
    for each in map(_narrowed, (matrix.a, matrix.b)):
        if each.type == "F32":
            with np.errstate(over="ignore"):
                halves = each.data.view(np.float32).astype(np.float16)
            if not np.isfinite(halves).all():
                raise ParameterError(
                    "adapter_type",
                    f"adapter_type={kind!r}: {path}: numbers of {name!r} are beyond float16's range (65504): "
                    "leave adapter_type out",
                )
            made.append(StoredTensor("F16", each.shape, halves.view(np.uint8)))
        else:
            made.append(each)
    return replace(matrix, a=made[0], b=made[1])


def _in_blocks(matrix: LowRank, embeds: bool) -> LowRank:
    """The matrix with those of its sides in Q8_0 that it holds.

    A block along the rank loses the small numbers beside large ones.  So such blocks are not made where those
    count as much, as the other side's numbers are the larger there.
    """
    a, b, rank = matrix.a, matrix.b, matrix.a.shape[embeds]
    rows, even = np.zeros((0, rank), np.float32), True
    if b.type != "Q8_0":
        rows = b.floats().reshape(-1, rank, _SIXTEEN).swapaxes(1, 2).reshape(-1, rank)
        of_a = np.abs(a.floats()).max(axis=1 - embeds).astype(np.float64)
        of_b = np.abs(rows).max(axis=0).astype(np.float64)
        even = bool(of_a.max() * of_b.max() <= _UNEVEN * (of_a * of_b).max())
    if a.type != "Q8_0" and a.shape[-1] % _BLOCK == 0 and (even or not embeds):
        blocks, factor = _quantised(a.floats(), matrix.factor)
        if blocks is not None:
            a = StoredTensor("Q8_0", a.shape, blocks.reshape(-1))
            matrix = replace(matrix, a=a, factor=factor)
    if b.type != "Q8_0" and even:
        blocks, factor = _quantised(rows, matrix.factor)
        if blocks is not None:
            matrix = replace(matrix, b=columns(blocks, "Q8_0", rank), factor=factor)
    return matrix


def _quantised(rows: NDArray[np.float32], factor: float) -> tuple[NDArray[np.uint8] | None, float]:
    """Rows as blocks of Q8_0, with zeros up to whole ones, and the factor that goes with them.

    They are divided by a power of two, so that scales have all of float16's bits.  None: a block is so much
    smaller than the largest that its scale has fewer, or the factor would leave float32's range.
    """
    exponent = math.frexp(float(np.abs(rows).max()))[1] - _HIGHEST
    n = -(-rows.shape[1] // _BLOCK)
    padded = np.zeros((len(rows), n * _BLOCK), np.float32)
    padded[:, : rows.shape[1]] = rows
    used = padded.reshape(-1, _BLOCK).any(axis=1)
    np.ldexp(padded, -exponent, out=padded)
    blocks = np.empty((len(rows), n * _BLOCK_BYTES), np.uint8)
    _native.quantise_rows(pool(), "Q8_0", padded, None, blocks)
    scales = blocks.reshape(-1, _BLOCK_BYTES)[:, :2].copy().view(np.float16)[:, 0]
    made = math.ldexp(factor, exponent)
    small = (scales[used] < np.finfo(np.float16).tiny).any()
    beyond = factor and not _LEAST_FACTOR <= abs(made) <= 1 / _LEAST_FACTOR
    return (None, factor) if small or beyond else (blocks, made)


def side_by_side(matrices: Mapping[str, LowRank]) -> dict[str, LowRank]:
    """Lay out the matrices in memory in the order of a step, as memory is read fastest."""
    names = sorted(matrices, key=adapted.step_order)
    packed = iter(_packed([getattr(matrices[name], side) for side in "ab" for name in names]))
    all_a = [next(packed) for _ in names]
    return {
        name: replace(matrices[name], a=a, b=b)
        for name, a, b in zip(names, all_a, packed, strict=True)
    }


def _narrowed(tensor: StoredTensor) -> StoredTensor:
    """Store F32 numbers as BF16 or F16 if no bit is lost: half the bytes, the same values."""
    if tensor.type != "F32":
        return tensor
    words = tensor.data.view(np.uint32)
    if not (words & 0xFFFF).any():
        halves, kind = (words >> 16).astype(np.uint16), "BF16"
    else:
        values = words.view(np.float32)
        with np.errstate(over="ignore"):
            near = values.astype(np.float16)
        if (near != values).any():
            return tensor
        halves, kind = near.view(np.uint16), "F16"
    return StoredTensor(kind, tensor.shape, halves.view(np.uint8))


def _packed(tensors: Sequence[StoredTensor]) -> list[StoredTensor]:
    """Copy tensors one after the other, each at the start of a cache line."""
    tensors = [_narrowed(each) for each in tensors]
    line, made = 64, []
    sizes = [-(-each.data.size // line) * line for each in tensors]
    room = zeros_in_large_pages(sum(sizes) + line)
    at = -room.ctypes.data % line
    for each, size in zip(tensors, sizes, strict=True):
        part = room[at : at + each.data.size]
        part[:] = each.data
        made.append(StoredTensor(each.type, each.shape, part))
        at += size
    return made
