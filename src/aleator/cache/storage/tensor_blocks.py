"""ggml's blocks of 32 elements in torch, for devices: the bytes that native code gives on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch

from aleator.cache.storage.types import StorageType


def hadamard(x: torch.Tensor, block: int) -> torch.Tensor:
    """Rows float32 [n, width], turned by a Hadamard matrix in blocks of a power of two; 0: not turned."""
    if not block:
        return x
    matrix = torch.ones(1, 1, device=x.device)
    while len(matrix) < block:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return (x.view(-1, block) @ matrix).mul_(block**-0.5).view(x.shape)


def quantised(type_: StorageType, x: torch.Tensor) -> torch.Tensor:
    """Rows float32 [n, width] rounded as by ggml's reference quantiser: uint8 [n, bytes of a row]."""
    v = x.view(len(x), -1, 32)
    poison = (v * 0).sum(-1, keepdim=True)  # NaN where something is not finite
    scales, q = _QUANTISERS[type_.name](v)
    whole = [torch.where(poison == 0, s, poison).half().view(torch.uint8) for s in scales]
    return torch.cat((*whole, q), -1).view(len(x), -1)


def dequantised(type_: StorageType, rows: torch.Tensor) -> torch.Tensor:
    """Rows float32 [n, width] of what :func:`quantised` made."""
    blocks = rows.reshape(len(rows), -1, type_.block_bytes)
    d = blocks[..., :2].contiguous().view(torch.float16).float()
    name = type_.name
    if name == "q8_0":
        return (blocks[..., 2:].contiguous().view(torch.int8).float() * d).view(len(rows), -1)
    packed = blocks[..., -16:]
    q = torch.cat((packed & 15, packed >> 4), -1)
    if name in ("q5_0", "q5_1"):
        places = torch.arange(8, dtype=torch.uint8, device=rows.device)
        fifth = blocks[..., -20:-16, None] >> places & 1
        q = q | fifth.flatten(-2) << 4
    if name in ("q4_1", "q5_1"):
        least = blocks[..., 2:4].contiguous().view(torch.float16).float()
        return (q.float() * d + least).view(len(rows), -1)
    if name == "iq4_nl":
        value = torch.tensor(IQ4_NL_VALUES, device=rows.device)[q.long()]
    else:
        value = q.float() - (8 if name == "q4_0" else 16)
    return (value * d).view(len(rows), -1)


IQ4_NL_VALUES = (
    *(-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0),
    *(1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0),
)
"""What the 16 integers of iq4_nl stand for, before the scale."""

_NOTHING = 1e-15
"""iq4_nl: magnitudes below are 0."""

_Quantised = tuple[tuple[torch.Tensor, ...], torch.Tensor]
"""Scales float32 [n, blocks, 1], and the bytes that follow them, uint8 [n, blocks, bytes]."""


def _inverse(d: torch.Tensor) -> torch.Tensor:
    return torch.where(d == 0, 0, 1 / d)


def _extreme(v: torch.Tensor) -> torch.Tensor:
    """Each block's first element of the largest magnitude, with its sign; of zeros +0."""
    magnitude = v.abs()
    first = (magnitude == magnitude.amax(-1, keepdim=True)).to(torch.uint8).argmax(-1, keepdim=True)
    return v.gather(-1, first) + 0.0


def _nibbles(q: torch.Tensor) -> torch.Tensor:
    return q[..., :16] & 15 | (q[..., 16:] & 15) << 4


def _packed(q: torch.Tensor, count: int) -> torch.Tensor:
    """Integers of 16 levels in nibbles; of 32, the fifth bits before them."""
    if count == 16:
        return _nibbles(q)
    places = torch.arange(8, dtype=torch.uint8, device=q.device)
    bits = ((q >> 4 & 1).view(*q.shape[:-1], 4, 8) << places).sum(-1).to(torch.uint8)
    return torch.cat((bits, _nibbles(q)), -1)


def _q8_0(v: torch.Tensor) -> _Quantised:
    d = v.abs().amax(-1, keepdim=True) / 127
    scaled = (v * _inverse(d)).nan_to_num(-127).clamp(-127, 127)
    below_half = torch.full_like(scaled, 0.49999997)  # half away from zero, exactly
    q = (scaled + below_half.copysign(scaled)).trunc().to(torch.int8).view(torch.uint8)
    return (d,), q


def _signed(v: torch.Tensor, count: int) -> _Quantised:
    """Scale and integers of ``count`` levels: the extreme becomes the lowest, whatever its sign."""
    middle = count // 2
    d = _extreme(v) / -middle
    q = (v * _inverse(d) + (middle + 0.5)).nan_to_num(0).clamp(0, count - 1)
    return (d,), _packed(q.to(torch.uint8), count)


def _from_least(v: torch.Tensor, count: int) -> _Quantised:
    """Scale, least element, and integers of ``count`` levels above it."""
    least, most = v.amin(-1, keepdim=True), v.amax(-1, keepdim=True)
    # Of zeros the first one counts, whose sign is stored.
    zero = v.gather(-1, (v == 0).to(torch.uint8).argmax(-1, keepdim=True))
    least = torch.where(least == 0, zero, least)
    d = torch.where(most == least, 0, (most - least) / (count - 1))
    q = ((v - least) * _inverse(d) + 0.5).nan_to_num(0).clamp(0, count - 1)
    return (d, least), _packed(q.to(torch.uint8), count)


def _iq4_nl(v: torch.Tensor) -> _Quantised:
    """The extreme becomes the lowest level; then the scale of least error, in ggml's order of sums."""
    values = torch.tensor(IQ4_NL_VALUES, device=v.device)
    something = v.abs().amax(-1, keepdim=True) >= _NOTHING
    scaled = v * torch.where(something, 1 / (_extreme(v) / values[0]), 0)
    q = torch.zeros_like(scaled, dtype=torch.uint8)
    for below, above in pairwise(values):
        q += scaled - below >= above - scaled
    value = values[q.long()]
    weighted = v * v * value
    products, squares = weighted * v, weighted * value
    product, square = torch.zeros_like(v[..., 0]), torch.zeros_like(v[..., 0])
    for i in range(32):
        product, square = product + products[..., i], square + squares[..., i]
    d = torch.where(something, (product / square)[..., None], 0)
    return (d,), _nibbles(torch.where(something, q, 0))


_QUANTISERS: dict[str, Callable[[torch.Tensor], _Quantised]] = {
    "q8_0": _q8_0,
    "q4_0": partial(_signed, count=16),
    "q4_1": partial(_from_least, count=16),
    "q5_0": partial(_signed, count=32),
    "q5_1": partial(_from_least, count=32),
    "iq4_nl": _iq4_nl,
}
