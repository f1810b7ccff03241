"""The portable numerics contract (docs/numerics.md) in Triton: weights, order, exact fractions, draws.

Launch what uses them with ``enable_fp_fusion=False``: every multiply and every add is rounded by itself.
"""

from __future__ import annotations

import triton
import triton.language as tl

NOTHING = tl.constexpr(-(2**63))  # before every key
BEYOND = tl.constexpr(2**63 - 1)  # after every key
ONE = tl.constexpr(1 << 40)


@triton.jit
def canonical(x, infinite, LOGITS: tl.constexpr):
    """Canonical float32: NaN masked, no -0; ``infinite``: the row holds a +inf."""
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
    """Larger is earlier in the order: value descending, then id ascending."""
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


@triton.jit
def sort_descending(keys, SIZE: tl.constexpr):
    """A block of int64 keys, largest first; SIZE is a power of 2."""
    if SIZE <= SORTED_BY_TRITON:
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
def logit_weight(z, top):
    """Q40 weights at a temperature of 1.

    The contract clamps t at -100; below -42 a weight is 0 anyway, and at -60 no shift exceeds 63.
    """
    t = tl.maximum((z - top) * 1.4426950216293335, -60.0)
    r = t + 12582912.0
    f = t - (r - 12582912.0)
    p = f * 0.001326472731307149 + 0.009671512991189957
    p = p * f + 0.05550733581185341
    p = p * f + 0.24022242426872253
    p = p * f + 0.6931470036506653
    p = p * f + 1.0
    b = p.to(tl.int32, bitcast=True)
    below = (127 + 0x4B400000) - (b >> 23) - r.to(tl.int32, bitcast=True)
    mantissa = (b & 0x7FFFFF) | 0x800000
    return ((mantissa.to(tl.uint64) << 17) >> below.to(tl.uint64)).to(tl.int64)


@triton.jit
def weight(z, top, LOGITS: tl.constexpr):
    """Q40 weights of canonical logits, or of probabilities: trunc(z * 2^40)."""
    if LOGITS:
        return logit_weight(z, top)
    else:
        return (tl.maximum(z, 0.0) * 1099511627776.0).to(tl.int64)


@triton.jit
def ceil_product(p, total):
    """ceil(p * total), p a float32 in (0, 1) taken as its exact fraction, total below 2^62."""
    b = p.to(tl.int32, bitcast=True)
    exponent = b >> 23
    numerator = tl.where(exponent > 0, (b & 0x7FFFFF) | 0x800000, b & 0x7FFFFF).to(tl.uint64)
    shift = 150 - tl.maximum(exponent, 1)  # 24 to 149
    wide = total.to(tl.uint64)
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
    """The float32 nearest to ln(m), m a positive float32, by IEEE float64 operations alone.

    ln(2^e f) = e ln 2 + 2 atanh(s), s = (f - 1) / (f + 1), to about 2^-59 of itself: s as a sum of two
    doubles.  Compared with the C library's logarithm for every m in (0, 1): no difference.
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
def philox_uniform(seed, position, STREAM: tl.constexpr):
    """One 64-bit uniform: Philox4x32-10 of counter (0, position, stream) under the seed."""
    k0 = (seed & 0xFFFFFFFF).to(tl.uint32)
    k1 = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    c1 = (position & 0xFFFFFFFF).to(tl.uint32)
    c2 = ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    c0 = c1 ^ c1
    c3 = c0 + STREAM
    m0, m1 = c0 + 0xD2511F53, c0 + 0xCD9E8D57
    w0, w1 = c0 + 0x9E3779B9, c0 + 0xBB67AE85
    for _ in tl.static_range(10):
        high0, low0 = tl.umulhi(m0, c0), m0 * c0
        high1, low1 = tl.umulhi(m1, c2), m1 * c2
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0 += w0
        k1 += w1
    return c0.to(tl.uint64) | (c1.to(tl.uint64) << 32)
