"""Quantises matrices to every type that aleator reads, in NumPy: for tests and benchmarks.

``gguf`` has no quantiser for blocks of 256 and for IQ4_NL.  Ours takes the scale of a group from its extremes
and rounds to nearest.  It is less careful than the one of llama.cpp: good enough for random weights, not for a
model that is to be used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from decoder_numerics.blocks import IQ4
from quantise_grids import GRIDS

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.floating[Any]]

BLOCK = 256
AT_ONCE = 2**22
"""Elements that are taken at a time, which bounds the memory."""


def quantise(kind: str, rows: Floats) -> npt.NDArray[np.generic]:
    """Rows as they are stored.

    Args:
        kind: the type's name, such as "Q4_K".
        rows: float32 [out, in]; ``in`` is a multiple of the type's block.

    Returns:
        [out, in] of another float type for F16 and F32; otherwise uint8 [out, row bytes].
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


def _half(values: Numbers) -> tuple[Floats, Bytes]:
    """[B] as float16: the values that are stored, and their bytes [B, 2]."""
    stored = values.astype(np.float16)
    return stored.astype(np.float32), stored[:, None].view(np.uint8)


def _over(a: Numbers, b: Numbers) -> Floats:
    """A quotient; 0 where the divisor is 0."""
    a, b = a.astype(np.float32), b.astype(np.float32)
    return np.divide(a, b, out=np.zeros(np.broadcast(a, b).shape, np.float32), where=b != 0)


def _nearest(values: Numbers, low: int, high: int) -> npt.NDArray[np.int64]:
    return np.clip(np.rint(values), low, high).astype(np.int64)


def _extreme(groups: Floats) -> Floats:
    """Of each group [..., n] the element of the largest magnitude."""
    at = np.abs(groups).argmax(-1)[..., None]
    found: Floats = np.take_along_axis(groups, at, -1)[..., 0]
    return found


def _nibbles(q: npt.NDArray[np.int64], part: int) -> Bytes:
    """[B, n] to bytes: of each ``part`` elements the first half low, the second high."""
    halves = q.reshape(len(q), -1, 2, part // 2)
    packed: Bytes = (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(len(q), -1).astype(np.uint8)
    return packed


def _bits(q: npt.NDArray[np.int64]) -> Bytes:
    """[B, 256] of 0 and 1 to 32 bytes: bit j of byte l is element 32 j + l."""
    spread = q.reshape(-1, 8, 32) << np.arange(8)[:, None]
    packed: Bytes = spread.sum(1).astype(np.uint8)
    return packed


def _pairs(q: npt.NDArray[np.int64]) -> Bytes:
    """[B, 256] of 0 to 3 to 64 bytes: bits 2 j of byte 32 h + l are element 128 h + 32 j + l."""
    spread = q.reshape(-1, 2, 4, 32) << 2 * np.arange(4)[:, None]
    packed: Bytes = spread.sum(2).reshape(len(q), -1).astype(np.uint8)
    return packed


def _six_bits(scale: npt.NDArray[np.int64], least: npt.NDArray[np.int64]) -> Bytes:
    """Eight scales and eight least values of 6 bits in 12 bytes."""
    first = scale[:, :4] | scale[:, 4:] >> 4 << 6
    second = least[:, :4] | least[:, 4:] >> 4 << 6
    third = (scale[:, 4:] & 15) | (least[:, 4:] & 15) << 4
    return np.concatenate([first, second, third], 1).astype(np.uint8)


def _symmetric(
    x: Floats, low: int, most: int
) -> tuple[Bytes, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Groups of 16 without a least value: d, scales up to ``most``, integers from ``low`` to ``-low - 1``."""
    groups = x.reshape(len(x), 16, 16)
    wanted = _extreme(groups) / low
    d, stored = _half(np.abs(wanted).max(1) / most)
    scale = _nearest(_over(wanted, d[:, None]), -most, most)
    q = _nearest(_over(groups, (d[:, None] * scale).astype(np.float32)[..., None]), low, -low - 1)
    return stored, scale, q.reshape(len(x), BLOCK)


def _with_least(
    x: Floats, size: int, bits: int, most: int
) -> tuple[Bytes, Bytes, npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Groups of ``size`` with a least value: d, dmin, scales, least values, integers."""
    groups, top = x.reshape(len(x), -1, size), 2**bits - 1
    below = np.maximum(0, -groups.min(-1))
    d, stored = _half(((groups.max(-1) + below) / top).max(1) / most)
    dmin, stored_min = _half(below.max(1) / most)
    scale = _nearest(_over((groups.max(-1) + below) / top, d[:, None]), 0, most)
    least = _nearest(_over(below, dmin[:, None]), 0, most)
    factor = (d[:, None] * scale).astype(np.float32)[..., None]
    shift = (dmin[:, None] * least).astype(np.float32)[..., None]
    q = _nearest(_over(groups + shift, factor), 0, top)
    return stored, stored_min, scale, least, q.reshape(len(x), BLOCK)


def _iq4(values: Floats) -> npt.NDArray[np.int64]:
    """Indices of the nearest of the 16 values of IQ4."""
    between = (IQ4[1:] + IQ4[:-1]) / 2
    return np.searchsorted(between, values).astype(np.int64)


def _q2_k(x: Floats) -> Bytes:
    d, dmin, scale, least, q = _with_least(x, 16, 2, 15)
    return np.concatenate([(scale | least << 4).astype(np.uint8), _pairs(q), d, dmin], 1)


def _q3_k(x: Floats) -> Bytes:
    d, scale, q = _symmetric(x, -4, 31)
    q, scale = q + 4, scale + 32
    low = (scale[:, :8] & 15) | (scale[:, 8:] & 15) << 4
    high = ((scale >> 4).reshape(-1, 4, 4) << 2 * np.arange(4)[:, None]).sum(1)
    words = np.concatenate([low, high], 1).astype(np.uint8)
    return np.concatenate([_bits(q >> 2), _pairs(q & 3), words, d], 1)


def _q4_k(x: Floats) -> Bytes:
    d, dmin, scale, least, q = _with_least(x, 32, 4, 63)
    return np.concatenate([d, dmin, _six_bits(scale, least), _nibbles(q, 64)], 1)


def _q5_k(x: Floats) -> Bytes:
    d, dmin, scale, least, q = _with_least(x, 32, 5, 63)
    six = _six_bits(scale, least)
    return np.concatenate([d, dmin, six, _bits(q >> 4), _nibbles(q & 15, 64)], 1)


def _q6_k(x: Floats) -> Bytes:
    d, scale, q = _symmetric(x, -32, 127)
    q = q + 32
    signed = scale.astype(np.int8).view(np.uint8)
    return np.concatenate([_nibbles(q & 15, 128), _pairs(q >> 4), signed, d], 1)


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
    "Q2_K": (256, _q2_k),
    "Q3_K": (256, _q3_k),
    "Q4_K": (256, _q4_k),
    "Q5_K": (256, _q5_k),
    "Q6_K": (256, _q6_k),
    "IQ4_XS": (256, _iq4_xs),
    "IQ4_NL": (32, _iq4_nl),
    **GRIDS,
}
"""Elements of a block and what stores blocks [B, elements], for the types that gguf cannot write."""
