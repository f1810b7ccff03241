"""Where adapters' numbers lie in memory, and in which type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from aleator.core.errors import ParameterError
from aleator.core.large_pages import zeros_in_large_pages
from aleator.models import adapted
from aleator.models.adapters import LowRank
from aleator.models.files.tensor_types import StoredTensor


def rounded(path: Path, name: str, matrix: LowRank) -> LowRank:
    """The matrix with numbers that take 32 bits as those of F16 that are nearest."""
    made = []
    for each in map(_narrowed, (matrix.a, matrix.b)):
        if each.type == "F32":
            with np.errstate(over="ignore"):
                halves = each.data.view(np.float32).astype(np.float16)
            if not np.isfinite(halves).all():
                raise ParameterError(
                    "adapter_type",
                    f"adapter_type='f16': {path}: numbers of {name!r} are beyond float16's range (65504): "
                    "leave adapter_type out",
                )
            made.append(StoredTensor("F16", each.shape, halves.view(np.uint8)))
        else:
            made.append(each)
    return replace(matrix, a=made[0], b=made[1])


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
