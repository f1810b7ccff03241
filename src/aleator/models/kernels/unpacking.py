"""Unpacks ggml's blocks by PyTorch operations on bytes, on any device: see :class:`Unpacked`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

import aleator._native as _native

Tensor = torch.Tensor


class Unpacked(NamedTuple):
    """B unpacked blocks of a type."""

    # The elements as stored, uint8 [B, elements]: their bits before the lookup of values or the subtraction of
    # an offset; int8's bits for types with 8 bits
    u: Tensor
    d: Tensor  # the scale's bytes, uint8 [B, 2] (a float16), or [B, 1] (an exponent)
    m: Tensor | None = None  # the bytes of ``m`` or ``dmin``, uint8 [B, 2], or None
    # uint8 or int8 [B, 8] or [B, 16], for blocks of 256; Q2_K has ``least`` in the upper nibbles
    scale: Tensor | None = None
    least: Tensor | None = None  # uint8 [B, 8]


def _nibbles(data: Tensor) -> Tensor:
    """[B, n] -> [B, 2n]: all low nibbles, then all high ones."""
    return torch.cat((data & 15, data >> 4), -1)


def _nibbles_of(data: Tensor, size: int) -> Tensor:
    """[B, n] -> [B, 2n]: for each ``size`` bytes the low nibbles, then the high ones."""
    return _nibbles(data.reshape(len(data), -1, size)).reshape(len(data), -1)


def _shifted(data: Tensor, by: list[int], mask: int) -> Tensor:
    """[...] -> [..., len(by)]: parts of each number, the lowest as ``by`` lists them."""
    shifts = torch.tensor(by, dtype=data.dtype, device=data.device)
    return data[..., None] >> shifts & mask


def _bits(data: Tensor) -> Tensor:
    """[B, n] bytes -> [B, 8n] bits, the lowest of a byte first."""
    return _shifted(data, list(range(8)), 1).reshape(len(data), -1)


def _pairs(data: Tensor) -> Tensor:
    """[B, n] bytes -> [B, 2n] nibbles, the low one of each byte first."""
    return _shifted(data, [0, 4], 15).reshape(len(data), -1)


def _two_bits(data: Tensor) -> Tensor:
    """[B, n] bytes -> [B, 4n]: for each 32 bytes the lowest two bits, then the next two, ..."""
    parts = _shifted(data.reshape(len(data), -1, 32), [0, 2, 4, 6], 3)
    return parts.transpose(2, 3).reshape(len(data), -1)


def _by_bit(data: Tensor) -> Tensor:
    """[B, 32] bytes -> [B, 256]: all lowest bits, then the next ones, ..."""
    return _shifted(data, list(range(8)), 1).transpose(1, 2).reshape(len(data), -1)


def _words(data: Tensor, size: int) -> Tensor:
    """[B, n] bytes -> int64 [B, n / size]: little-endian words."""
    parts = data.reshape(len(data), -1, size).long()
    words = parts[..., 0]
    for i in range(1, size):
        words = words | parts[..., i] << 8 * i
    return words


def _q3_k(b: Tensor) -> Unpacked:
    low = _nibbles(b[:, 96:104])
    high = _shifted(b[:, 104:108], [0, 2, 4, 6], 3).transpose(1, 2).reshape(-1, 16)
    scale = (low | high << 4).view(torch.int8) - 32
    return Unpacked(_two_bits(b[:, 32:96]) | _by_bit(b[:, :32]) << 2, b[:, 108:110], None, scale)


def _least_too(b: Tensor, u: Tensor) -> Unpacked:
    """Q4_K's and Q5_K's blocks: 12 bytes are eight scales and eight least values, each for two groups."""
    first, second, third = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    scale = torch.cat((first & 63, third & 15 | first >> 6 << 4), 1)
    least = torch.cat((second & 63, third >> 4 | second >> 6 << 4), 1)
    return Unpacked(u, b[:, :2], b[:, 2:4], scale, least)


def _q6_k(b: Tensor) -> Unpacked:
    u = _nibbles_of(b[:, :128], 64) | _two_bits(b[:, 128:192]) << 4
    return Unpacked(u, b[:, 208:210], None, b[:, 192:208])


def _iq4_xs(b: Tensor) -> Unpacked:
    high = _shifted(b[:, 2:4], [0, 2, 4, 6], 3).reshape(-1, 8)
    scale = (_pairs(b[:, 4:8]) | high << 4).view(torch.int8) - 32
    return Unpacked(_nibbles_of(b[:, 8:], 16), b[:, :2], None, scale)


def _signs(bits: Tensor) -> Tensor:
    """[..., 8] bits -> int8: -1 where one is set, else 1."""
    return 1 - 2 * bits.to(torch.int8)


def _sevens(words: Tensor) -> Tensor:
    """[...] of seven bits -> int8 [..., 8] of 1 and -1, the eighth such that the number of -1 is even."""
    bits = _shifted((words & 127).to(torch.uint8), list(range(8)), 1)
    bits[..., 7] = bits.sum(-1) & 1
    return _signs(bits)


def _grid(name: str, at: Tensor, signs: Tensor) -> Tensor:
    """Entries of a codebook [B, n] with their signs, [B, 256] in all, as int8's bits."""
    entries = torch.from_numpy(np.array(_native.codebook(name))).view(torch.int8).to(at.device)
    made = entries[at.long()].reshape(len(at), 256) * signs.reshape(len(at), 256)
    return made.view(torch.uint8)


def _odd(scales: Tensor, groups: int = 16) -> Tensor:
    """[B, n] -> int8 [B, groups]: twice the scale and one more, each for groups / n groups."""
    odd = (2 * scales + 1).to(torch.int8)
    return odd.repeat_interleave(groups // odd.shape[1], 1)


def _iq2_xxs(b: Tensor) -> Unpacked:
    words = _words(b[:, 2:], 4).reshape(-1, 8, 2)[..., 1]
    at = b[:, 2:].reshape(-1, 8, 8)[:, :, :4].reshape(-1, 32)
    signs = _sevens(_shifted(words, [0, 7, 14, 21], 127))
    return Unpacked(_grid("IQ2_XXS", at, signs), b[:, :2], None, _odd(words >> 28, 8))


def _iq2_xs(b: Tensor) -> Unpacked:
    words = _words(b[:, 2:66], 2)
    u = _grid("IQ2_XS", words & 511, _sevens(words >> 9))
    return Unpacked(u, b[:, :2], None, _odd(_pairs(b[:, 66:])))


def _iq2_s(b: Tensor) -> Unpacked:
    high = _shifted(b[:, 66:74], [0, 2, 4, 6], 3).reshape(-1, 32)
    u = _grid("IQ2_S", b[:, 2:34].long() | high.long() << 8, _signs(_bits(b[:, 34:66])))
    return Unpacked(u, b[:, :2], None, _odd(_pairs(b[:, 74:])))


def _iq3_xxs(b: Tensor) -> Unpacked:
    words = _words(b[:, 66:], 4)
    u = _grid("IQ3_XXS", b[:, 2:66], _sevens(_shifted(words, [0, 7, 14, 21], 127)))
    return Unpacked(u, b[:, :2], None, _odd(words >> 28, 8))


def _iq3_s(b: Tensor) -> Unpacked:
    at = b[:, 2:66].long() | _bits(b[:, 66:74]).long() << 8
    u = _grid("IQ3_S", at, _signs(_bits(b[:, 74:106])))
    return Unpacked(u, b[:, :2], None, _odd(_pairs(b[:, 106:]), 8))


def _eighths(at: Tensor, less: Tensor) -> Tensor:
    """IQ1's entries [B, 32], each with an eighth more or less, in eighths, [B, 256]."""
    entries = torch.from_numpy(np.array(_native.codebook("IQ1_S"))).view(torch.int8).to(at.device)
    made = entries[at] - 9 + _signs(less)[..., None]
    return made.reshape(len(at), 256).view(torch.uint8)


def _iq1_s(b: Tensor) -> Unpacked:
    words = _words(b[:, 34:], 2)
    high = _shifted(words, [0, 3, 6, 9], 7).reshape(-1, 32)
    u = _eighths(b[:, 2:34].long() | high << 8, (words >> 15).repeat_interleave(4, 1))
    return Unpacked(u, b[:, :2], None, _odd(words >> 12 & 7, 8))


def _iq1_m(b: Tensor) -> Unpacked:
    # Four bits of the scale are the highest of each of four words.
    top = b[:, 49::2] >> 4
    d = torch.stack((top[:, 0] | top[:, 1] << 4, top[:, 2] | top[:, 3] << 4), 1)
    nibbles = _pairs(b[:, 32:48]).long()
    scales = _shifted(_words(b[:, 48:], 2), [0, 3, 6, 9], 7).reshape(-1, 16)
    u = _eighths(b[:, :32].long() | (nibbles & 7) << 8, nibbles >> 3)
    return Unpacked(u, d, None, _odd(scales))


def _tq1_0(b: Tensor) -> Unpacked:
    def digits(part: Tensor, n: int) -> Tensor:
        powers = torch.tensor([3**i for i in range(n)], dtype=torch.int16, device=b.device)
        fractions = part[:, None, :].to(torch.int16) * powers[:, None] & 255
        return (fractions * 3 >> 8).to(torch.uint8).reshape(len(part), -1)

    parts = [digits(b[:, :32], 5), digits(b[:, 32:48], 5), digits(b[:, 48:52], 4)]
    return Unpacked(torch.cat(parts, 1), b[:, 52:54])


UNPACKERS: dict[str, Callable[[Tensor], Unpacked]] = {
    "Q8_0": lambda b: Unpacked(b[:, 2:], b[:, :2]),
    "Q4_0": lambda b: Unpacked(_nibbles(b[:, 2:]), b[:, :2]),
    "Q4_1": lambda b: Unpacked(_nibbles(b[:, 4:]), b[:, :2], b[:, 2:4]),
    "Q5_0": lambda b: Unpacked(_nibbles(b[:, 6:]) | _bits(b[:, 2:6]) << 4, b[:, :2]),
    "Q5_1": lambda b: Unpacked(_nibbles(b[:, 8:]) | _bits(b[:, 4:8]) << 4, b[:, :2], b[:, 2:4]),
    "IQ4_NL": lambda b: Unpacked(_nibbles(b[:, 2:]), b[:, :2]),
    "MXFP4": lambda b: Unpacked(_nibbles(b[:, 1:]), b[:, :1]),
    "Q2_K": lambda b: Unpacked(_two_bits(b[:, 16:80]), b[:, 80:82], b[:, 82:84], b[:, :16]),
    "Q3_K": _q3_k,
    "Q4_K": lambda b: _least_too(b, _nibbles_of(b[:, 16:], 32)),
    "Q5_K": lambda b: _least_too(b, _nibbles_of(b[:, 48:], 32) | _by_bit(b[:, 16:48]) << 4),
    "Q6_K": _q6_k,
    "IQ4_XS": _iq4_xs,
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
    "TQ1_0": _tq1_0,
    "TQ2_0": lambda b: Unpacked(_two_bits(b[:, :64]), b[:, 64:66]),
}
"""Functions that unpack blocks, uint8 [B, bytes of a block], by type."""
