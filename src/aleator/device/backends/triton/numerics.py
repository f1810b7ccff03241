"""The portable numerics contract (docs/numerics.md) in Triton: weights, order, exact fractions, draws.

Launch kernels that use it with ``enable_fp_fusion=False``: every multiply and every add is rounded separately.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from aleator.core import contract
from aleator.core.numerics import ROOTS_OF_TWO

NOTHING = tl.constexpr(-(2**63))  # below every key
BEYOND = tl.constexpr(2**63 - 1)  # above every key
ONE = tl.constexpr(1 << contract.WEIGHT_BITS)
LOG2_E = tl.constexpr(contract.LOG2_E)
SCALE = tl.constexpr(float(np.float32(contract.LOG2_E)))  # of a temperature of 1
COLDEST = tl.constexpr(contract.COLDEST)
LEAST_BITS = tl.constexpr(contract.LEAST_BITS)
DEPTH_UNIT = tl.constexpr(contract.DEPTH_UNIT)
ENTROPY_SERIES = tl.constexpr(contract.ENTROPY_SERIES)
Q32 = tl.constexpr(2.0**-32)
_Q62 = tl.constexpr(2.0**-62)
_ONE_FLOAT = tl.constexpr(2.0**contract.WEIGHT_BITS)
_C0, _C1, _C2, _C3, _C4, _C5 = (tl.constexpr(c) for c in contract.EXP2_COEFFICIENTS)
_ROUND = tl.constexpr(contract.ROUND)
_ROUND_BITS = tl.constexpr(int(np.float32(contract.ROUND).view(np.int32)))
_ROUND_DOUBLE = tl.constexpr(1.5 * 2.0**52)  # rounds a float64 to an integer, ties to even
_SHIFT = tl.constexpr(contract.WEIGHT_BITS - 23)
_FLOAT_BITS = tl.constexpr(127 + contract.WEIGHT_BITS)
_EXP2_LIMIT = tl.constexpr(contract.EXP2_LIMIT)
_M0, _M1 = (tl.constexpr(m) for m in contract.PHILOX_MULTIPLIERS)
_W0, _W1 = (tl.constexpr(w) for w in contract.PHILOX_KEY_STEPS)
_ROUNDS = tl.constexpr(contract.PHILOX_ROUNDS)
_ROOTS = tl.constexpr(ROOTS_OF_TWO)


@triton.jit
def canonical(x, infinite, LOGITS: tl.constexpr):
    """Canonical float32: NaN masked, no -0; ``infinite`` says whether the row holds a +inf."""
    if LOGITS:
        x = tl.maximum(x, float("-inf")) + 0.0
        x = tl.where(infinite, tl.where(x == float("inf"), 0.0, float("-inf")), x)
    else:
        x = tl.maximum(x, 0.0) + 0.0
    return x


@triton.jit
def ordered(z):
    """Floats as int32 in the same order."""
    b = z.to(tl.int32, bitcast=True)
    return b ^ ((b >> 31) & 0x7FFFFFFF)


@triton.jit
def value_of(order):
    """The float of an ordered int32."""
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def order_key(z, ids):
    """A key that is larger the earlier a token is in the order: value descending, then id ascending."""
    return (ordered(z).to(tl.int64) << 32) | (0xFFFFFFFF - ids.to(tl.int64))


@triton.jit
def key_value(keys):
    """The value of a key."""
    return value_of((keys >> 32).to(tl.int32))


@triton.jit
def key_id(keys):
    """The token id of a key."""
    return 0xFFFFFFFF - (keys & 0xFFFFFFFF)


# tl.sort is unrolled: a large one takes minutes to compile, and any takes seconds under the interpreter.
SORTED_BY_TRITON = tl.constexpr(0 if triton.knobs.runtime.interpret else 256)
IN_PAIRS = tl.constexpr(128)
"""Up to this many elements are compared in pairs: two sums are faster than a sorting network."""


@triton.jit
def sort_descending(keys, SIZE: tl.constexpr):
    """Sort a block of int64 keys, largest first; SIZE is a power of 2."""
    if SIZE <= IN_PAIRS:
        i = tl.arange(0, SIZE)
        equal = (keys[None, :] == keys[:, None]) & (i[None, :] < i[:, None])
        rank = tl.sum(((keys[None, :] > keys[:, None]) | equal).to(tl.int32), axis=1)
        return tl.sum(tl.where(rank[:, None] == i[None, :], keys[:, None], 0), axis=0)
    elif SIZE <= SORTED_BY_TRITON:
        return tl.sort(keys, descending=True)
    else:
        i = tl.arange(0, SIZE)
        run = 2
        while run <= SIZE:  # bitonic network
            stride = run // 2
            while stride > 0:
                other = tl.gather(keys, i ^ stride, 0)
                larger = ((i & stride) == 0) == ((i & run) == 0)
                keys = tl.where(larger, tl.maximum(keys, other), tl.minimum(keys, other))
                stride = stride // 2
            run = run * 2
        return keys


@triton.jit
def least_kept(top, bound, LOGITS: tl.constexpr):
    """The ordered int32 of the least kept float: within ``bound`` of the top, or at least ``bound``."""
    high = ordered(top).to(tl.int64)  # kept
    low = high * 0 - 2147483648  # not kept
    for _ in range(33):
        middle = (low + high) >> 1
        z = value_of(middle.to(tl.int32))
        if LOGITS:
            kept = (z - top >= bound) & (z > float("-inf"))
        else:
            kept = z.to(tl.float64) >= bound
        high = tl.where(kept & (middle > low), middle, high)
        low = tl.where(kept, low, middle)
    return high


@triton.jit
def scale_of(temperature):
    """The contract's c, float32, for a float64 temperature."""
    return (tl.full([], LOG2_E, tl.float64) / temperature).to(tl.float32)


@triton.jit
def power(t):
    """2^t as (p, n), p * 2^n with p near 1."""
    r = t + _ROUND
    f = t - (r - _ROUND)
    p = f * _C5 + _C4
    p = p * f + _C3
    p = p * f + _C2
    p = p * f + _C1
    p = p * f + _C0
    return p, r.to(tl.int32, bitcast=True) - _ROUND_BITS


@triton.jit
def logit_weight(z, top, c):
    """Q40 weights, ``c`` from :func:`scale_of`.

    The contract clamps t at -100; below -42 a weight is 0 anyway, and at -60 no shift exceeds 63.
    """
    p, n = power(tl.maximum((z - top) * c, -60.0))
    b = p.to(tl.int32, bitcast=True)
    below = 127 - (b >> 23) - n
    mantissa = (b & 0x7FFFFF) | 0x800000
    return ((mantissa.to(tl.uint64) << _SHIFT) >> below.to(tl.uint64)).to(tl.int64)


@triton.jit
def weighted_bits(z, top, c):
    """Weights times their bits below ``top``, int64; 60 bits below, the product is 0 anyway."""
    t = tl.maximum((z - top) * c, -60.0)
    p, n = power(t)
    return (p * ((n + _FLOAT_BITS) << 23).to(tl.float32, bitcast=True) * -t).to(tl.int64)


@triton.jit
def depth_of(z, top, c):
    """How many bits each weight lies below 2^40, int64 in Q16."""
    t = tl.maximum((z - top) * c, LEAST_BITS).to(tl.float64) * -DEPTH_UNIT
    return ((t + _ROUND_DOUBLE) - _ROUND_DOUBLE).to(tl.int64)


@triton.jit
def entropy_of(n, gap, weight, bits):
    """Entropy, mean depth and mass from the contract's sums, int64 except ``gap``."""
    one = tl.full([], _ONE_FLOAT, tl.float64)
    e = tl.full([], LOG2_E, tl.float64)
    tops, weight, bits = n.to(tl.float64), weight.to(tl.float64) / one, bits.to(tl.float64) / one
    share = exp2_double(-gap)
    mass = share * weight
    total = tops + mass
    depth = share * (gap * weight + bits) / total
    series = mass * (e - mass * (e / 2 - mass * (e / 3)))
    log = tl.where((n == 1) & (mass < ENTROPY_SERIES), series, log2_double(total))
    return log + depth, depth, (total * one).to(tl.int64)


@triton.jit
def probability_weight(p):
    """Q40 weights of probabilities: trunc(p * 2^40)."""
    return (tl.maximum(p, 0.0) * _ONE_FLOAT).to(tl.int64)


@triton.jit
def ceil_product(p, total):
    """ceil(p * total), p a float32 in (0, 1) taken as its exact fraction, total below 2^62."""
    b = p.to(tl.int32, bitcast=True)
    exponent = b >> 23
    numerator = tl.where(exponent > 0, (b & 0x7FFFFF) | 0x800000, b & 0x7FFFFF)
    return ceil_fraction(numerator, 150 - tl.maximum(exponent, 1), total)


@triton.jit
def ceil_fraction(numerator, shift, total):
    """ceil(numerator / 2^shift * total), numerator below 2^24, shift at least 24, total below 2^62."""
    numerator, wide = numerator.to(tl.uint64), total.to(tl.uint64)
    high, low = tl.umulhi(numerator, wide), numerator * wide
    near = tl.minimum(shift, 63).to(tl.uint64)
    far = tl.minimum(tl.maximum(shift - 64, 0), 63).to(tl.uint64)
    one = near * 0 + 1
    rest_near = (low & ((one << near) - one)) != 0
    rest_far = ((high & ((one << far) - one)) != 0) | (low != 0)
    up = tl.minimum(tl.maximum(64 - shift, 0), 63).to(tl.uint64)
    floor = tl.where(shift < 64, (high << up) | (low >> near), high >> far)
    rest = tl.where(shift < 64, rest_near, rest_far)
    return floor.to(tl.int64) + rest.to(tl.int64)


@triton.jit
def log_nearest(m):
    """The float32 nearest to ln(m), m a positive float32, using only IEEE float64 operations.

    ln(2^e f) = e ln 2 + 2 atanh(s), s = (f - 1) / (f + 1), to a relative error of about 2^-59, with s as a sum
    of two doubles.  It equals the C library's logarithm for every m in (0, 1).
    """
    x = m.to(tl.float64)
    b = x.to(tl.int64, bitcast=True)
    e = ((b >> 52) - 1023).to(tl.float64)
    f = ((b & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000).to(tl.float64, bitcast=True)
    large = f > 1.4142135623730951
    f = tl.where(large, f * 0.5, f)
    e = tl.where(large, e + 1.0, e)
    over, under = f - 1.0, f + 1.0
    s = over / under
    c = s * 134217729.0  # 2^27 + 1 splits s into halves whose products with `under` are exact
    s_high = c - (c - s)
    s_low = s - s_high
    rest = ((over - s_high * under) - s_low * under) / under
    s2 = s * s
    t = s2 * 0.047619047619047616 + 0.05263157894736842
    t = t * s2 + 0.058823529411764705
    t = t * s2 + 0.06666666666666667
    t = t * s2 + 0.07692307692307693
    t = t * s2 + 0.09090909090909091
    t = t * s2 + 0.1111111111111111
    t = t * s2 + 0.14285714285714285
    t = t * s2 + 0.2
    t = t * s2 + 0.3333333333333333
    tail = s * s2 * t
    whole, twice = e * 0.6931471803691238, 2.0 * s
    sum_ = whole + twice
    v = sum_ - whole
    error = (whole - (sum_ - v)) + (twice - v)
    low = error + (e * 1.9082149292705877e-10 + (2.0 * rest + 2.0 * tail))
    return (sum_ + low).to(tl.float32)


@triton.jit
def philox_uniform(index, seed, position, stream):
    """64-bit uniforms: Philox4x32-10 of counter (index, position, stream) under the seed."""
    k0 = (seed & 0xFFFFFFFF).to(tl.uint32)
    k1 = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    c0 = index.to(tl.uint32)
    c1 = c0 * 0 + (position & 0xFFFFFFFF).to(tl.uint32)
    c2 = c0 * 0 + ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    c3 = c0 * 0 + stream.to(tl.uint32)
    zero = c0 ^ c0
    m0, m1 = zero + _M0, zero + _M1
    k0, k1 = zero + k0, zero + k1
    w0, w1 = zero + _W0, zero + _W1
    for _ in tl.static_range(_ROUNDS):
        high0, low0 = tl.umulhi(m0, c0), m0 * c0
        high1, low1 = tl.umulhi(m1, c2), m1 * c2
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0 += w0
        k1 += w1
    return c0.to(tl.uint64) | (c1.to(tl.uint64) << 32)


@triton.jit
def log2_q32(x):
    """log2 of positive uint64 in Q32, rounded down, as int64."""
    m, n = x, (x * 0).to(tl.int64)
    for i in tl.static_range(6):  # move the highest bit to the top
        low = m < (tl.full([], 1, tl.uint64) << (64 - (32 >> i)))
        m = tl.where(low, m << (32 >> i), m)
        n = tl.where(low, n - (32 >> i), n)
    n += 63
    fraction = n * 0
    for _ in range(32):
        square = tl.umulhi(m, m)
        two = (square >> 63).to(tl.int64)
        fraction = (fraction << 1) | two
        m = tl.where(two == 1, square, square << 1)
    return (n << 32) + fraction


@triton.jit
def _exp2_q62(fraction):
    m = tl.full([], 1 << 62, tl.uint64)
    for i in tl.static_range(32):
        root = tl.full([], _ROOTS[i], tl.uint64)
        product = (tl.umulhi(m, root) << 2) | ((m * root) >> 62)
        m = tl.where(((fraction >> (31 - i)) & 1) == 1, product, m)
    return m


@triton.jit
def exp2_double(y):
    """2^y for a float64, clamped to [-1000, 1000] and rounded down to Q32."""
    q = tl.floor(tl.minimum(tl.maximum(y, -_EXP2_LIMIT), _EXP2_LIMIT) * 4294967296.0).to(tl.int64)
    mantissa = _exp2_q62(q & 0xFFFFFFFF).to(tl.int64).to(tl.float64) * _Q62
    return mantissa * (((q >> 32) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def log2_double(x):
    """log2 of a positive normal float64, to 2^-32."""
    b = x.to(tl.int64, bitcast=True)
    mantissa = ((b & 0xFFFFFFFFFFFFF) | 0x10000000000000).to(tl.uint64)
    log = log2_q32(mantissa) + (((b >> 52) - 1075) << 32)
    return log.to(tl.float64) * Q32
