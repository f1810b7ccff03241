"""Floats that share a scale: what the types F8_E4M3 and NF4 stand for."""

from __future__ import annotations

import numpy as np

from decoder_numerics.blocks import Bytes, Floats

ELEMENTS = 64
"""Elements that share a scale."""

NF4 = np.array([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023,
    1.0,
], np.float32)  # fmt: skip
"""What NF4's codes stand for (Dettmers et al. 2023, arXiv:2305.14314)."""


def e4m3() -> Floats:
    """What the 256 codes of float8 stand for, but for NaN (Micikevicius et al. 2022, arXiv:2209.05433)."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    normal, subnormal = (8 + mantissa) * 2.0 ** (exponent - 10), mantissa * 2.0**-9
    values = np.where(exponent > 0, normal, subnormal) * np.where(codes & 128, -1, 1)
    return values.astype(np.float32)


def values(kind: str, data: Bytes) -> Floats:
    """Rows, uint8 [out, row bytes], as float32 [out, in]: each element is its code's number times the scale.

    A block is a float32 and then 64 codes.  Those of NF4 are four bits: of 16 bytes the low nibbles are 16
    elements, the high ones the next.  The float32 of F8_E4M3 is 256 times the scale.
    """
    size = 4 + (ELEMENTS if kind == "F8_E4M3" else ELEMENTS // 2)
    blocks = data.reshape(len(data), -1, size)
    scale, codes = blocks[..., :4].copy().view(np.float32), blocks[..., 4:]
    if kind == "F8_E4M3":
        made = (e4m3() / np.float32(256))[codes] * scale
    else:
        parts = codes.reshape(*codes.shape[:2], 2, 1, 16)
        made = (
            NF4[np.concatenate([parts & 15, parts >> 4], -2).reshape(*codes.shape[:2], -1)] * scale
        )
    whole: Floats = made.reshape(len(data), -1)
    return whole
