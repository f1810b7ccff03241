"""Products with weights in ggml's blocks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import aleator._native as _native
from aleator.core.records import dataclass

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int64)
"""The values of IQ4_NL and IQ4_XS (ggml-common.h, ``kvalues_iq4nl``)."""

MXFP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int64)
"""Twice the values of MXFP4 (ggml-common.h, ``kvalues_mxfp4``)."""

GROUP = 16
"""Elements that share a scale in blocks of 256."""


class Blocks(NamedTuple):
    """B blocks of a type taken apart.

    An element is ``d * scale * q - dmin * least`` in blocks of 256, ``d * q + m`` in blocks of 32.  In
    those of a codebook ``d`` is the stored number over a power of 2, so that scales and integers are whole.

    Attributes:
        q: integers [B, elements].
        d: float32 [B].
        m: float32 [B], or None: ``m`` of blocks of 32, ``dmin`` of blocks of 256.
        scale: integers [B, 16], of blocks of 256.
        least: integers [B, 16], of blocks of 256 that have ``dmin``.

    """

    q: Integers
    d: Floats
    m: Floats | None = None
    scale: Integers | None = None
    least: Integers | None = None


@dataclass(frozen=True)
class Rounded:
    """Rows of activations in int8: about ``d * q``.

    Attributes:
        q: integers [T, in], -127 to 127.
        d: float32 [T, in / block].
        block: elements that share a ``d``: as many as a block of the weights has.

    """

    q: Integers
    d: Floats
    block: int


def round_rows(x: Floats, block: int) -> Rounded:
    """Round activations, float32 [T, in], to int8.

    ``d`` is the largest magnitude of a block over 127, ``q`` the element times 127 over it, to nearest, ties
    to even.  A block with an element that is not finite has ``d`` NaN and ``q`` 0; one whose largest magnitude
    is below 2^-100 is taken for zeros.
    """
    parts = x.reshape(len(x), -1, block)
    largest = np.abs(parts).max(-1)
    broken: npt.NDArray[np.bool_] = np.logical_not(np.isfinite(parts).all(-1, keepdims=True))[
        ..., 0
    ]
    none = ~broken & (largest < np.float32(2.0**-100))
    usable = ~broken & ~none
    safe = np.where(usable, largest, np.float32(1))
    factor = np.where(usable, np.float32(127) / safe, np.float32(0))
    finite = np.where(broken[..., None], np.float32(0), parts)
    q = np.rint(finite * factor[..., None]).astype(np.int64)
    d = np.where(broken, np.float32(np.nan), np.where(none, np.float32(0), safe / np.float32(127)))
    return Rounded(q.reshape(len(x), -1), d.astype(np.float32), block)


def fused(a: Floats, b: Floats, c: Floats) -> Floats:
    """``a * b + c`` rounded once to float32.

    The product is exact in float64; the sum is rounded to odd there, so that rounding again is harmless.
    """
    product = a.astype(np.float64) * b
    total = product + c
    rest = total - product
    error = (product - (total - rest)) + (c - rest)
    even = total.view(np.int64) & 1 == 0
    away = np.where(error > 0, np.inf, -np.inf)
    odd = np.where(np.isfinite(total) & (error != 0) & even, np.nextafter(total, away), total)
    return odd.astype(np.float32)


def product(kind: str, data: Bytes, x: Floats) -> Floats:
    """``x`` W^T, float32 [T, out]: W's rows are ``data``, uint8 [out, row bytes], of type ``kind``.

    Blocks are taken in their order, each by one fused multiply-add of ``d * dx`` and the exact integer sum,
    and one more where the type has a least value.
    """
    elements, size, unpack = FORMATS[kind]
    out, n_blocks = len(data), data.shape[1] // size
    blocks = unpack(data.reshape(-1, size))
    rows = round_rows(x, elements)
    q = blocks.q.reshape(out, n_blocks, elements)
    y = np.zeros((len(x), out), np.float32)
    for b in range(n_blocks):
        xq = rows.q[:, b * elements : (b + 1) * elements]
        dx = rows.d[:, b, None]

        def floats(values: Floats, b: int = b) -> Floats:
            return values.reshape(out, n_blocks)[:, b]

        def groups(values: Integers, b: int = b) -> Integers:
            return values.reshape(out, n_blocks, -1)[:, b]

        sums = xq.reshape(len(x), -1, GROUP).sum(-1)
        if blocks.scale is None:
            exact = xq @ q[:, b].T
        else:
            exact = (q[:, b].reshape(out, 1, -1, GROUP) * xq.reshape(1, len(x), -1, GROUP)).sum(-1)
            exact = (exact * groups(blocks.scale)[:, None]).sum(-1).T
        y = fused(floats(blocks.d) * dx, exact.astype(np.float32), y)
        if blocks.least is not None and blocks.m is not None:
            least = (sums @ groups(blocks.least).T).astype(np.float32)
            y = fused(-(floats(blocks.m) * dx), least, y)
        elif blocks.m is not None:
            total = sums.sum(-1, keepdims=True).astype(np.float32)
            m = np.broadcast_to(floats(blocks.m), y.shape)
            y = fused(m, np.broadcast_to(dx * total, y.shape), y)
    return y


def _half(data: Bytes, at: int) -> Floats:
    return data[:, at : at + 2].copy().view(np.float16).astype(np.float32)[:, 0]


def _nibbles(data: Bytes) -> Integers:
    """[B, n] bytes -> [B, 2n]: all low nibbles, then all high ones."""
    return np.concatenate([data & 15, data >> 4], 1).astype(np.int64)


def _bits(data: Bytes) -> Integers:
    """[B, n] bytes -> [B, 8n] bits, the lowest of a byte first."""
    return np.unpackbits(data, axis=1, bitorder="little").astype(np.int64)


def _q8_0(b: Bytes) -> Blocks:
    return Blocks(b[:, 2:].view(np.int8).astype(np.int64), _half(b, 0))


def _q4_0(b: Bytes) -> Blocks:
    return Blocks(_nibbles(b[:, 2:]) - 8, _half(b, 0))


def _q4_1(b: Bytes) -> Blocks:
    return Blocks(_nibbles(b[:, 4:]), _half(b, 0), _half(b, 2))


def _q5_0(b: Bytes) -> Blocks:
    return Blocks(_nibbles(b[:, 6:]) + 16 * _bits(b[:, 2:6]) - 16, _half(b, 0))


def _q5_1(b: Bytes) -> Blocks:
    return Blocks(_nibbles(b[:, 8:]) + 16 * _bits(b[:, 4:8]), _half(b, 0), _half(b, 2))


def _iq4_nl(b: Bytes) -> Blocks:
    return Blocks(IQ4[_nibbles(b[:, 2:])], _half(b, 0))


def _mxfp4(b: Bytes) -> Blocks:
    exponent = b[:, 0].astype(np.uint32)
    small = np.uint32(0x00200000) << np.minimum(exponent, 1)
    bits = np.where(exponent < 2, small, np.maximum(exponent, 1) - np.uint32(1) << np.uint32(23))
    return Blocks(MXFP4[_nibbles(b[:, 1:])], bits.astype(np.uint32).view(np.float32))


def _two_bits(data: Bytes) -> Integers:
    """[B, 64] bytes -> [B, 256]: of each 32 bytes the lowest two bits, then the next two, ..."""
    parts = data.reshape(len(data), 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    return parts.reshape(len(data), 256).astype(np.int64)


def _six_bits(p: Bytes) -> tuple[Integers, Integers]:
    """12 bytes -> eight scales and eight least values, each for two groups."""
    scale = np.empty((len(p), 8), np.int64)
    least = np.empty((len(p), 8), np.int64)
    scale[:, :4], least[:, :4] = p[:, :4] & 63, p[:, 4:8] & 63
    scale[:, 4:] = (p[:, 8:] & 15) | (p[:, :4] >> 6) << 4
    least[:, 4:] = (p[:, 8:] >> 4) | (p[:, 4:8] >> 6) << 4
    return scale.repeat(2, 1), least.repeat(2, 1)


def _q2_k(b: Bytes) -> Blocks:
    scales = b[:, :16].astype(np.int64)
    return Blocks(_two_bits(b[:, 16:80]), _half(b, 80), _half(b, 82), scales & 15, scales >> 4)


def _q3_k(b: Bytes) -> Blocks:
    # Bit 4n + j of byte l belongs to element 128n + 32j + l.
    high = _bits(b[:, :32]).reshape(-1, 32, 8).transpose(0, 2, 1).reshape(-1, 256)
    low, two = _nibbles(b[:, 96:104]), b[:, 104:108].astype(np.int64)
    above = (two[:, None, :] >> np.array([0, 2, 4, 6])[:, None] & 3).reshape(-1, 16)
    return Blocks(
        _two_bits(b[:, 32:96]) + 4 * high - 4, _half(b, 108), None, (low | above << 4) - 32
    )


def _q4_k(b: Bytes) -> Blocks:
    q = np.concatenate([_nibbles(b[:, i : i + 32]) for i in range(16, 144, 32)], 1)
    return Blocks(q, _half(b, 0), _half(b, 2), *_six_bits(b[:, 4:16]))


def _q5_k(b: Bytes) -> Blocks:
    q = np.concatenate([_nibbles(b[:, i : i + 32]) for i in range(48, 176, 32)], 1)
    fifth = _bits(b[:, 16:48]).reshape(-1, 32, 8).transpose(0, 2, 1).reshape(-1, 256)
    return Blocks(q + 16 * fifth, _half(b, 0), _half(b, 2), *_six_bits(b[:, 4:16]))


def _q6_k(b: Bytes) -> Blocks:
    low = np.concatenate([_nibbles(b[:, i : i + 64]) for i in (0, 64)], 1)
    q = low + 16 * _two_bits(b[:, 128:192]) - 32
    return Blocks(q, _half(b, 208), None, b[:, 192:208].view(np.int8).astype(np.int64))


def _iq4_xs(b: Bytes) -> Blocks:
    q = np.concatenate([IQ4[_nibbles(b[:, i : i + 16])] for i in range(8, 136, 16)], 1)
    low = np.stack([b[:, 4:8] & 15, b[:, 4:8] >> 4], -1).reshape(-1, 8).astype(np.int64)
    words = b[:, 2:4].copy().view(np.uint16).astype(np.int64)
    high = words >> 2 * np.arange(8) & 3
    return Blocks(q, _half(b, 0), None, ((low | high << 4) - 32).repeat(2, 1))


def _signs(sevens: Integers) -> Integers:
    """[...] of seven bits -> [..., 8] of 1 and -1, the eighth such that the number of -1 is even."""
    bits = sevens[..., None] >> np.arange(7) & 1
    signs: Integers = 1 - 2 * np.concatenate([bits, bits.sum(-1, keepdims=True) & 1], -1)
    return signs


def _words(b: Bytes, kind: str) -> Integers:
    made: Integers = b.copy().view(kind).astype(np.int64)
    return made


def _grid(name: str, at: Integers, signs: Integers) -> Integers:
    """Entries of a codebook with their signs [B, 32, 8] -> [B, 256]."""
    of = np.asarray(_native.codebook(name)).astype(np.int64)[at]
    return (of.reshape(signs.shape) * signs).reshape(len(at), 256)


def _odd(scales: Integers) -> Integers:
    return 2 * scales + 1


def _two_scales(b: Bytes) -> Integers:
    """[B, n] bytes -> [B, 2n] odd scales, of a byte the low nibble's first."""
    return _odd(np.stack([b & 15, b >> 4], -1).reshape(len(b), -1).astype(np.int64))


def _sevens(words: Integers) -> Integers:
    """[B, 8] of 32 bits -> signs [B, 32, 8], from the lowest 28 bits."""
    return _signs(words[..., None] >> 7 * np.arange(4) & 127).reshape(len(words), 32, 8)


def _iq2_xxs(b: Bytes) -> Blocks:
    words = _words(b[:, 2:], "<u4").reshape(-1, 8, 2)
    at = b[:, 2:].reshape(-1, 8, 8)[:, :, :4].reshape(-1, 32).astype(np.int64)
    q = _grid("IQ2_XXS", at, _sevens(words[:, :, 1]))
    return Blocks(q, _half(b, 0) / np.float32(8), None, _odd(words[:, :, 1] >> 28).repeat(2, 1))


def _iq2_xs(b: Bytes) -> Blocks:
    words = _words(b[:, 2:66], "<u2")
    q = _grid("IQ2_XS", words & 511, _signs(words >> 9))
    return Blocks(q, _half(b, 0) / np.float32(8), None, _two_scales(b[:, 66:]))


def _iq2_s(b: Bytes) -> Blocks:
    high = (b[:, 66:74, None] >> 2 * np.arange(4) & 3).reshape(-1, 32).astype(np.int64)
    signs = 1 - 2 * _bits(b[:, 34:66]).reshape(-1, 32, 8)
    q = _grid("IQ2_S", b[:, 2:34] | high << 8, signs)
    return Blocks(q, _half(b, 0) / np.float32(8), None, _two_scales(b[:, 74:]))


def _iq3_xxs(b: Bytes) -> Blocks:
    words = _words(b[:, 66:], "<u4")
    q = _grid("IQ3_XXS", b[:, 2:66].astype(np.int64), _sevens(words))
    return Blocks(q, _half(b, 0) / np.float32(4), None, _odd(words >> 28).repeat(2, 1))


def _iq3_s(b: Bytes) -> Blocks:
    signs = 1 - 2 * _bits(b[:, 74:106]).reshape(-1, 32, 8)
    q = _grid("IQ3_S", b[:, 2:66] | _bits(b[:, 66:74]) << 8, signs)
    return Blocks(q, _half(b, 0), None, _two_scales(b[:, 106:]).repeat(2, 1))


def _eighths(at: Integers, less: Integers) -> Integers:
    """IQ1's entries [B, 32], each with an eighth more or less, in eighths [B, 256]."""
    whole = np.asarray(_native.codebook("IQ1_S")).astype(np.int64)[at] - 9
    return (whole + (1 - 2 * less)[..., None]).reshape(len(at), 256)


def _iq1_s(b: Bytes) -> Blocks:
    words = _words(b[:, 34:], "<u2")
    high = (words[..., None] >> 3 * np.arange(4) & 7).reshape(-1, 32)
    q = _eighths(b[:, 2:34] | high << 8, (words >> 15).repeat(4, 1))
    return Blocks(q, _half(b, 0) / np.float32(8), None, _odd(words >> 12 & 7).repeat(2, 1))


def _iq1_m(b: Bytes) -> Blocks:
    words = _words(b[:, 48:], "<u2")
    stored = (words >> 12 << 4 * np.arange(4)).sum(1).astype(np.uint16)
    nibbles = np.stack([b[:, 32:48] & 15, b[:, 32:48] >> 4], -1).reshape(-1, 32).astype(np.int64)
    scales = (words[..., None] >> 3 * np.arange(4) & 7).reshape(-1, 16)
    q = _eighths(b[:, :32] | (nibbles & 7) << 8, nibbles >> 3)
    return Blocks(q, stored.view(np.float16).astype(np.float32) / np.float32(8), None, _odd(scales))


def _tq1_0(b: Bytes) -> Blocks:
    def digits(part: Bytes, n: int) -> Integers:
        powers = 3 ** np.arange(n)
        fractions: Integers = part[:, None, :].astype(np.int64) * powers[:, None] & 255
        return (fractions * 3 >> 8).reshape(len(part), -1) - 1

    q = [digits(b[:, :32], 5), digits(b[:, 32:48], 5), digits(b[:, 48:52], 4)]
    return Blocks(np.concatenate(q, 1), _half(b, 52), None, np.ones((len(b), 16), np.int64))


def _tq2_0(b: Bytes) -> Blocks:
    return Blocks(_two_bits(b[:, :64]) - 1, _half(b, 64), None, np.ones((len(b), 16), np.int64))


FORMATS = {
    "Q8_0": (32, 34, _q8_0),
    "Q4_0": (32, 18, _q4_0),
    "Q4_1": (32, 20, _q4_1),
    "Q5_0": (32, 22, _q5_0),
    "Q5_1": (32, 24, _q5_1),
    "IQ4_NL": (32, 18, _iq4_nl),
    "MXFP4": (32, 17, _mxfp4),
    "Q2_K": (256, 84, _q2_k),
    "Q3_K": (256, 110, _q3_k),
    "Q4_K": (256, 144, _q4_k),
    "Q5_K": (256, 176, _q5_k),
    "Q6_K": (256, 210, _q6_k),
    "IQ4_XS": (256, 136, _iq4_xs),
    "IQ2_XXS": (256, 66, _iq2_xxs),
    "IQ2_XS": (256, 74, _iq2_xs),
    "IQ2_S": (256, 82, _iq2_s),
    "IQ3_XXS": (256, 98, _iq3_xxs),
    "IQ3_S": (256, 110, _iq3_s),
    "IQ1_S": (256, 50, _iq1_s),
    "IQ1_M": (256, 56, _iq1_m),
    "TQ1_0": (256, 54, _tq1_0),
    "TQ2_0": (256, 66, _tq2_0),
}
"""Per type: elements of a block, its bytes, and what takes it apart."""
