"""P-less, top-H and min-k in Triton, on a row's whole list; contracts: aleator.samplers.

Lists hold at most 2^10 candidates, so sums stay smaller than docs/numerics.md allows for.
"""

from __future__ import annotations

import triton
import triton.language as tl

from aleator.device.backends.triton.lists import (
    keep_first,
    keep_run,
    rank_of,
    size_of,
    top_of,
    weights_of,
)
from aleator.device.backends.triton.numerics import (
    LOG2_E,
    NOTHING,
    entropy_of,
    key_value,
    logit_weight,
    scale_of,
    sort_descending,
    weighted_bits,
)


@triton.jit
def p_less(place, row, keys, alive, temperature):
    """Keeps tokens whose probability reaches the sum of all squared probabilities."""
    w = weights_of(keys, alive, temperature)
    n, mass = size_of(alive), tl.maximum(tl.sum(w, axis=0), 1)
    high, low = w >> 20, w & 0xFFFFF
    # high * 2^40 + middle * 2^21 + low is the sum of squares, of 128 bits.
    highs, middles = tl.sum(high * high, axis=0), tl.sum(high * low, axis=0)
    lows = tl.sum(low * low, axis=0)
    crossed = middles.to(tl.uint64) << 21
    head = (highs.to(tl.uint64) << 40) + crossed
    tail = head + lows.to(tl.uint64)
    upper = (highs >> 24) + (middles >> 43)
    upper += (head < crossed).to(tl.int64) + (tail < head).to(tl.int64)
    # A quotient in float64 is off by less than one unit.
    squares = highs.to(tl.float64) * 1099511627776.0 + middles.to(tl.float64) * 2097152.0
    bound = ((squares + lows.to(tl.float64)) / mass.to(tl.float64)).to(tl.int64)
    for _ in range(2):
        product = tl.umulhi(bound.to(tl.uint64), mass.to(tl.uint64)).to(tl.int64)
        rest = bound.to(tl.uint64) * mass.to(tl.uint64)
        bound += ((product < upper) | ((product == upper) & (rest < tail))).to(tl.int64)
    others = tl.maximum(n - 1, 1)
    normal = (n * bound - mass + others - 1) // others
    normalized = (tl.load(place.normalized + row) != 0) & (n > 1)
    return keep_run(alive, w >= tl.where(normalized, normal, bound)) | keep_first(alive, 1)


@triton.jit
def top_h(place, row, keys, alive, temperature):
    """Keeps the most likely tokens whose entropy is at most a share of that of all."""
    z, top, c = key_value(keys), top_of(keys, alive), scale_of(temperature)
    rank, n = rank_of(alive), size_of(alive)
    below = alive & (z < top)
    tops = n - size_of(below)
    second = tl.max(tl.where(below, z, float("-inf")), axis=0)
    second = tl.where(second > float("-inf"), second, top)
    w = tl.where(below, logit_weight(z, second, c), 0)
    x = tl.where(below, weighted_bits(z, second, c), 0)
    gap = (top.to(tl.float64) - second.to(tl.float64)) * (
        tl.full([], LOG2_E, tl.float64) / temperature
    )
    bits, _, _ = entropy_of(tl.maximum(tops, 1), gap, tl.sum(w, axis=0), tl.sum(x, axis=0))
    most = tl.load(place.share + row) * bits
    kept, unit = n * 0, tl.full([], 1 << 10, tl.int64)
    for _ in range(11):
        length = kept + unit
        weight = tl.sum(tl.where(rank < length, w, 0), axis=0)
        depth = tl.sum(tl.where(rank < length, x, 0), axis=0)
        bits, _, _ = entropy_of(tl.maximum(tl.minimum(tops, length), 1), gap, weight, depth)
        kept = tl.where((length <= n) & (bits <= most), length, kept)
        unit = unit >> 1
    return keep_first(alive, tl.maximum(kept, 1))


@triton.jit
def min_k(place, row, keys, alive, SIZE: tl.constexpr):
    """Keeps what stands before the steepest fall of the logits."""
    n = size_of(alive)
    at = tl.arange(0, SIZE)
    z = key_value(sort_descending(tl.where(alive, keys, NOTHING), SIZE))
    z = tl.where(at < n, z, 0.0).to(tl.float64)
    rank = at.to(tl.int64) + 1
    following = tl.gather(z, tl.minimum(at + 1, SIZE - 1), 0)
    fall = tl.where(rank < n, (z - following) / rank.to(tl.float64), -1.0)
    cliff = tl.min(tl.where(fall == tl.max(fall, axis=0), rank, SIZE), axis=0)
    first = tl.sum(tl.where(rank == 1, z, 0.0), axis=0)
    span = first - tl.sum(tl.where(rank == n, z, 0.0), axis=0)
    wanted = tl.minimum(tl.load(place.tau + row) / span, n.to(tl.float64)).to(tl.int64)
    return keep_first(alive, tl.where(span > 0, tl.maximum(cliff, wanted), n))
