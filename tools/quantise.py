"""Quantises matrices to every type that aleator reads: for tests and benchmarks.

Q2_K to Q6_K are aleator's own, others are gguf's.  Types with codebooks, which neither has, take the scale of a
group from its extremes and round to nearest: good enough for random weights, not for real models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from decoder_numerics.blocks import IQ4
from quantise_grids import GRIDS

import aleator._native as _native
from aleator.core.threads import pool
from aleator.models.files.tensor_types import TENSOR_TYPES

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.floating[Any]]

BLOCK = 256
AT_ONCE = 2**22
"""Elements that are quantised at a time, to bound memory."""


def quantise(kind: str, rows: Floats) -> npt.NDArray[np.generic]:
    """Quantise rows.

    Args:
        kind: the type's name, such as "Q4_K".
        rows: float32 [out, in]; ``in`` is a multiple of the type's block.

    Returns:
        [out, in] of a float type for F16 and F32; otherwise uint8 [out, row bytes].
    """
    if kind not in KINDS:
        stored: npt.NDArray[np.generic] = gguf.quants.quantize(
            rows, gguf.GGMLQuantizationType[kind]
        )
        return stored
    elements, one = KINDS[kind]
    most = max(1, AT_ONCE // rows.shape[1])
    parts = [
        one(rows[i : i + most].reshape(-1, elements)).reshape(len(rows[i : i + most]), -1)
        for i in range(0, len(rows), most)
    ]
    return np.concatenate(parts)


def quantise_tensor(kind: str, tensor: Floats) -> npt.NDArray[np.generic]:
    """As ``quantise``, for float32 of any shape [..., in]."""
    rows = quantise(kind, tensor.reshape(-1, tensor.shape[-1]))
    return rows.reshape(*tensor.shape[:-1], -1)


def _half(values: Numbers) -> tuple[Floats, Bytes]:
    """[B] as float16: the values that are stored, and their bytes [B, 2]."""
    stored = values.astype(np.float16)
    return stored.astype(np.float32), stored[:, None].view(np.uint8)


def _over(a: Numbers, b: Numbers) -> Floats:
    """A quotient; 0 if the divisor is 0."""
    a, b = a.astype(np.float32), b.astype(np.float32)
    return np.divide(a, b, out=np.zeros(np.broadcast(a, b).shape, np.float32), where=b != 0)


def _nearest(values: Numbers, low: int, high: int) -> npt.NDArray[np.int64]:
    return np.clip(np.rint(values), low, high).astype(np.int64)


def _extreme(groups: Floats) -> Floats:
    """The element of the largest magnitude of each group [..., n]."""
    at = np.abs(groups).argmax(-1)[..., None]
    found: Floats = np.take_along_axis(groups, at, -1)[..., 0]
    return found


def _nibbles(q: npt.NDArray[np.int64], part: int) -> Bytes:
    """[B, n] to bytes: for each ``part`` elements the first half low, the second high."""
    halves = q.reshape(len(q), -1, 2, part // 2)
    packed: Bytes = (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(len(q), -1).astype(np.uint8)
    return packed


def _iq4(values: Floats) -> npt.NDArray[np.int64]:
    """Indices of the nearest of the 16 values of IQ4."""
    between = (IQ4[1:] + IQ4[:-1]) / 2
    return np.searchsorted(between, values).astype(np.int64)


def _k_quants(kind: str) -> Callable[[Floats], Bytes]:
    """A function that stores blocks of such a type."""
    n_bytes = TENSOR_TYPES[kind].size

    def store(x: Floats) -> Bytes:
        made = np.empty((len(x), n_bytes), np.uint8)
        _native.quantise_rows(pool(), kind, np.ascontiguousarray(x), None, made)
        return made

    return store


def _iq4_nl(x: Floats) -> Bytes:
    d, stored = _half(_extreme(x) / -127)
    return np.concatenate([stored, _nibbles(_iq4(_over(x, d[:, None])), 32)], 1)


def _iq4_xs(x: Floats) -> Bytes:
    groups = x.reshape(len(x), 8, 32)
    wanted = _extreme(groups) / -127
    d, stored = _half(np.abs(wanted).max(1) / 31)
    scale = _nearest(_over(wanted, d[:, None]), -31, 31)
    q = _iq4(_over(groups, (d[:, None] * scale).astype(np.float32)[..., None]))
    words = scale + 32
    high = ((words >> 4) << 2 * np.arange(8)).sum(1).astype(np.uint16)[:, None].view(np.uint8)
    low = ((words[:, ::2] & 15) | (words[:, 1::2] & 15) << 4).astype(np.uint8)
    return np.concatenate([stored, high, low, _nibbles(q.reshape(len(x), -1), 32)], 1)


KINDS: dict[str, tuple[int, Callable[[Floats], Bytes]]] = {
    **{f"Q{bits}_K": (256, _k_quants(f"Q{bits}_K")) for bits in range(2, 7)},
    "IQ4_XS": (256, _iq4_xs),
    "IQ4_NL": (32, _iq4_nl),
    **GRIDS,
}
"""Elements of a block and the function that stores blocks [B, elements], for types that gguf cannot write."""
