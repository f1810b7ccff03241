"""Integers of 64 bits and more, logarithms, powers and Philox on tensors (docs/numerics.md).

int64 tensors also stand for unsigned numbers, where stated: additions, products and left shifts wrap in the
same way; right shifts and comparisons are defined here.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from aleator.core.contract import EXP2_LIMIT, PHILOX_KEY_STEPS, PHILOX_MULTIPLIERS, PHILOX_ROUNDS
from aleator.core.numerics import ROOTS_OF_TWO

MASK32 = 0xFFFFFFFF
SIGN = -(2**63)


def shift_right(x: Tensor, n: int) -> Tensor:
    """Unsigned ``x >> n`` for n in [1, 63]."""
    return x >> n & (1 << 64 - n) - 1


def less(a: Tensor, b: Tensor) -> Tensor:
    """Unsigned ``a < b``."""
    return (a ^ SIGN) < (b ^ SIGN)


def mul_high(a: Tensor, b: Tensor) -> Tensor:
    """The upper 64 bits of the unsigned product."""
    a0, a1, b0, b1 = a & MASK32, shift_right(a, 32), b & MASK32, shift_right(b, 32)
    low, m0, m1 = a0 * b0, a0 * b1, a1 * b0
    middle = shift_right(low, 32) + (m0 & MASK32) + (m1 & MASK32)
    return a1 * b1 + shift_right(m0, 32) + shift_right(m1, 32) + (middle >> 32)


def bit_length(x: Tensor) -> Tensor:
    """The number of bits of an unsigned number; 0 for 0."""
    length = torch.zeros_like(x)
    for step in (32, 16, 8, 4, 2, 1):
        upper = shift_right(x, step)
        more = upper != 0
        x = torch.where(more, upper, x)
        length = length + more * step
    return length + (x != 0)


def log2_q32(x: Tensor) -> Tensor:
    """log2 of a positive unsigned number in Q32, rounded down."""
    n = bit_length(x) - 1
    m = x << 63 - n
    fraction = torch.zeros_like(x)
    for _ in range(32):
        square = mul_high(m, m)
        two = shift_right(square, 63)
        fraction = fraction << 1 | two
        m = torch.where(two == 1, square, square << 1)
    return (n << 32) + fraction


def exp2_q62(fraction: Tensor) -> Tensor:
    """2^(fraction / 2^32) in Q62 for fractions in [0, 2^32)."""
    m = torch.full_like(fraction, 1 << 62)
    for i, root in enumerate(ROOTS_OF_TWO):
        factor = torch.full_like(m, root)
        product = mul_high(m, factor) << 2 | shift_right(m * factor, 62)
        m = torch.where(fraction >> 31 - i & 1 == 1, product, m)
    return m


def log2_double(x: Tensor) -> Tensor:
    """log2 of positive finite float64, to 2^-32."""
    mantissa, exponent = torch.frexp(x)
    log = log2_q32((mantissa * 2.0**53).to(torch.int64))
    return (log + (exponent.to(torch.int64) - 53 << 32)).to(torch.float64) / 2.0**32


def exp2_double(y: Tensor) -> Tensor:
    """2^y for float64 y, clamped to [-1000, 1000] and rounded down to Q32."""
    q = (y.clamp(-EXP2_LIMIT, EXP2_LIMIT) * 2.0**32).floor().to(torch.int64)
    mantissa = exp2_q62(q & MASK32).to(torch.float64) * 2.0**-62
    power = ((q >> 32) + 1023 << 52).view(torch.float64)  # the bits of 2^(q >> 32)
    return mantissa * power


def fraction_parts(x: float) -> tuple[int, int]:
    """``(m, s)`` with m < 2^24 and m / 2^s exactly the float32 nearest to x, in [0, 1]."""
    mantissa, exponent = math.frexp(np.float32(x))
    if mantissa == 0:
        return 0, 24
    return int(mantissa * 2**24), 24 - exponent


def ceil_of_fraction(m: Tensor, s: Tensor, total: Tensor) -> Tensor:
    """``ceil(m / 2^s * total)``: m < 2^24, s at least 23 and m / 2^s at most 1, total below 2^62."""
    low = m * (total & MASK32)
    high = m * (total >> 32) + (low >> 32)  # below 2^54: the product is high * 2^32 + low
    low = low & MASK32
    near = (s - 32).clamp(max=0)  # s below 32: bits of the quotient come from low
    far = (s - 32).clamp(0, 62)
    one = torch.ones_like(s)
    small = (high << -near) + (low >> 32 + near)
    left_small = low & (one << 32 + near) - 1
    large = high >> far
    left_large = (high & (one << far) - 1) | low
    is_small = s < 32
    quotient = torch.where(is_small, small, large)
    return quotient + (torch.where(is_small, left_small, left_large) != 0)


def variance(n: Tensor, total: Tensor, squares: Tensor) -> Tensor:
    """``n * squares - total^2`` as float64, rounded once; exact integers of up to 2^82 below."""
    low = n * squares - total * total
    size = total.abs()
    high = (
        mul_high(n, squares)
        - mul_high(size, size)
        - less(n * squares, total * total).to(torch.int64)
    )
    # Above 2^62: the upper bits, and one that says whether any lower bit is set.
    length = torch.where(high != 0, 64 + bit_length(high), bit_length(low))
    cut = (length - 62).clamp(0, 62)
    one = torch.ones_like(cut)
    # high < 2^20, and cut is below 64 whenever it matters
    upper = torch.where(cut > 0, (high << (64 - cut).clamp(0, 63)) | _shift_by(low, cut), low)
    sticky = (low & (one << cut) - 1) != 0
    power = (cut + 1023 << 52).view(torch.float64)
    return (upper | sticky.to(torch.int64)).to(torch.float64) * power


def double_of(high: Tensor, low: Tensor) -> Tensor:
    """``high * 2^16 + low`` as float64, rounded once, for numbers from 0 to 2^54."""
    high = high + (low >> 16)
    low = low & 0xFFFF
    exact = ((high << 16) | low).to(torch.float64)
    # From 2^63 on: without the last 8 bits, except for whether any is set.
    upper = (high << 8) | (low >> 8) | ((low & 0xFF) != 0).to(torch.int64)
    return torch.where(high < 1 << 47, exact, upper.to(torch.float64) * 256.0)


def _shift_by(x: Tensor, n: Tensor) -> Tensor:
    """Unsigned ``x >> n`` for a tensor n in [0, 63]."""
    one = torch.ones_like(n)
    kept = torch.where(n > 0, (one << (64 - n).clamp(0, 63)) - 1, torch.full_like(n, -1))
    return x >> n & kept


def philox(index: Tensor, position: Tensor, stream: Tensor, seed: Tensor) -> Tensor:
    """Unsigned 64-bit uniforms: the first two words of Philox4x32-10, the low one first.

    ``index`` and ``stream`` are below 2^32; ``position`` and ``seed`` have 64 bits.
    """
    c0, c1, c2, c3 = index, position & MASK32, shift_right(position, 32), stream
    k0, k1 = seed & MASK32, shift_right(seed, 32)
    for _ in range(PHILOX_ROUNDS):
        a, b = c0 * PHILOX_MULTIPLIERS[0], c2 * PHILOX_MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            shift_right(b, 32) ^ c1 ^ k0,
            b & MASK32,
            shift_right(a, 32) ^ c3 ^ k1,
            a & MASK32,
        )
        k0, k1 = k0 + PHILOX_KEY_STEPS[0] & MASK32, k1 + PHILOX_KEY_STEPS[1] & MASK32
    return c0 | c1 << 32
