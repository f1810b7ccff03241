"""A row's first candidates as a list: a block of keys in the order, and a mask of those that are left.

The verbs are those of docs/numerics.md, "Words"; here each of them returns the new mask.
After its first truncation a row fits in registers, so all samplers of a chain are one kernel, specialised by
kind.  Rows that need more go to a second kernel ("all at or before one key"), or to PyTorch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from aleator.device.backends.triton.numerics import (
    BEYOND,
    IN_PAIRS,
    LOG2_E,
    NOTHING,
    canonical,
    depth_of,
    entropy_of,
    key_id,
    key_value,
    log2_q32,
    logit_weight,
    order_key,
    philox_uniform,
    scale_of,
    sort_descending,
    weighted_bits,
)
from aleator.device.backends.triton.sparse import bit_of


@triton.jit
def in_order(buffer, count, SIZE: tl.constexpr):
    """SIZE keys in the order, the first ``count`` of a buffer and then NOTHING."""
    at = tl.arange(0, SIZE)
    return sort_descending(tl.load(buffer + at, mask=at < count, other=NOTHING), SIZE)


@triton.jit
def top_of(keys, alive):
    """The largest logit of the list, 0 if it is empty."""
    top = tl.max(tl.where(alive, key_value(keys), float("-inf")), axis=0)
    return tl.where(top > float("-inf"), top, 0.0)


@triton.jit
def weights_of(keys, alive, temperature):
    """Q40 weights, 0 where there is no candidate."""
    z = key_value(keys)
    return tl.where(alive, logit_weight(z, top_of(keys, alive), scale_of(temperature)), 0)


@triton.jit
def depths_of(keys, alive, temperature):
    """Bits of each weight below the largest, in Q16."""
    return depth_of(key_value(keys), top_of(keys, alive), scale_of(temperature))


@triton.jit
def size_of(alive):
    """How many candidates there are, int64."""
    return tl.sum(alive.to(tl.int64), axis=0)


@triton.jit
def entropy_terms(keys, alive, temperature):
    """What entropies are made of: how many candidates have the largest logit, and the gap to the next logit.

    Of each candidate below the largest: its weight relative to that next logit, and weight times bits.
    """
    z, top, c = key_value(keys), top_of(keys, alive), scale_of(temperature)
    below = alive & (z < top)
    second = tl.max(tl.where(below, z, float("-inf")), axis=0)
    second = tl.where(second > float("-inf"), second, top)
    w = tl.where(below, logit_weight(z, second, c), 0)
    x = tl.where(below, weighted_bits(z, second, c), 0)
    gap = (top.to(tl.float64) - second.to(tl.float64)) * (
        tl.full([], LOG2_E, tl.float64) / temperature
    )
    return size_of(alive) - size_of(below), gap, w, x


@triton.jit
def entropy(keys, alive, temperature):
    """Entropy and mean depth in bits, float64, and the mass, int64 in Q40."""
    tops, gap, w, x = entropy_terms(keys, alive, temperature)
    return entropy_of(tl.maximum(tops, 1), gap, tl.sum(w, axis=0), tl.sum(x, axis=0))


@triton.jit
def rank_of(alive):
    """How many candidates come before each, int64."""
    one = alive.to(tl.int64)
    return tl.cumsum(one, axis=0) - one


@triton.jit
def keep_first(alive, n):
    """The first ``n``."""
    return alive & (rank_of(alive) < n)


@triton.jit
def keep_mass(alive, w, wanted):
    """The shortest prefix of mass ``wanted``."""
    return alive & (tl.cumsum(w, axis=0) - w < wanted)


@triton.jit
def keep_run(alive, reached):
    """The candidates before the first that is not ``reached``."""
    failed = tl.cumsum((alive & (reached == 0)).to(tl.int32), axis=0) > 0
    return alive & (failed == 0)


@triton.jit
def keep_near(keys, alive, bound):
    """What lies within ``bound`` of the largest."""
    return alive & (key_value(keys) - top_of(keys, alive) >= bound)


@triton.jit
def keep_allowed(keys, alive, words):
    """The tokens whose bit is set."""
    return alive & bit_of(words, key_id(keys), alive)


@triton.jit
def first_id(keys, alive):
    """The first candidate's token."""
    return key_id(tl.max(tl.where(alive, keys, NOTHING), axis=0))


@triton.jit
def draw(keys, w, u):
    """The first token in id order whose cumulative weight exceeds floor(u * sum / 2^64)."""
    target = tl.umulhi(u, tl.sum(w, axis=0).to(tl.uint64)).to(tl.int64)
    ids = key_id(keys)
    if keys.shape[0] <= IN_PAIRS:
        before = tl.sum(tl.where(ids[None, :] < ids[:, None], w[None, :], 0), axis=1)
        reached = (before <= target) & (before + w > target)
        token = tl.max(tl.where(reached, ids, 0), axis=0)
    else:
        # The largest token such that the mass before it is at most the target; below 5^9 are all ids.
        token, unit = tl.zeros([], tl.int64), tl.full([], 5**8, tl.int64)
        steps = tl.arange(0, 4)
        for _ in range(9):
            ends = token + (steps + 1) * unit
            before = tl.sum(tl.where(ids[None, :] < ends[:, None], w[None, :], 0), axis=1)
            token += tl.sum((before <= target).to(tl.int64), axis=0) * unit
            unit = unit // 5
    return token


@triton.jit
def race(keys, w, seed, position, stream):
    """The token with the smallest E / w, the lowest of equals (aleator.device.backends.torch.draws)."""
    ids = key_id(keys)
    u = philox_uniform(ids, seed, position, stream)
    remainder = (tl.full([], 64, tl.int64) << 32) - log2_q32(tl.where(u == 0, 1, u).to(tl.uint64))
    left, divisor = w > 0, tl.maximum(w, 1)
    for bits in tl.static_range(4):
        remainder = remainder << (24 if bits == 0 else 22)
        digit = tl.where(left, remainder // divisor, BEYOND)
        remainder = remainder % divisor
        left = left & (digit == tl.min(digit, axis=0))
    return tl.min(tl.where(left, ids, BEYOND), axis=0)


@triton.jit
def logits_of(keys, temperature):
    """Logits with the pending temperature applied."""
    z = key_value(keys)
    return tl.where(
        temperature == 1.0, z, tl.div_rn(z, tl.zeros_like(z) + temperature.to(tl.float32))
    )


@triton.jit
def write(keys, alive, written, SIZE: tl.constexpr):
    """The list after its logits were written: canonical, and in order again."""
    written = canonical(tl.where(alive, written, float("-inf")), False, True)
    infinite = tl.max(written, axis=0) == float("inf")
    z = canonical(written, infinite, True)
    keys = tl.where(z > float("-inf"), order_key(z, key_id(keys)), NOTHING)
    keys = sort_descending(keys, SIZE)
    return keys, keys > NOTHING
