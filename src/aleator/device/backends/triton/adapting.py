"""Adaptive-p and mirostat 1 in Triton, on a row's list of candidates; see ``places``."""

from __future__ import annotations

import triton
import triton.language as tl

from aleator.core import contract
from aleator.device.backends.triton import lists, numerics
from aleator.device.backends.triton.places import draw_and_move, uniform

PEAK, SLOPE = tl.constexpr(contract.ADAPTIVE_PEAK), tl.constexpr(contract.ADAPTIVE_SLOPE)
SPREAD = tl.constexpr(contract.ADAPTIVE_WIDTH)
FLAT, NEAR = tl.constexpr(2.0**-10), tl.constexpr(2.0**-20)


@triton.jit
def adaptive_p(place, row, keys, alive, temperature, position, states, SIZE: tl.constexpr):
    """Draws tokens whose probability is near a target, and records the new average."""
    target, decay = tl.load(place.target + row), tl.load(place.decay + row)
    total = tl.load(place.total + row * states + position)
    weight = tl.load(place.weight + row * states + position)
    w = lists.weights_of(keys, alive, temperature)
    mass = tl.maximum(tl.sum(w, axis=0), 1)
    p = (w.to(tl.float64) / mass.to(tl.float64)).to(tl.float32)
    ids = numerics.key_id(keys)
    if target >= 0:
        # Lost: the temperature before it is too small, which is an error on the host.
        z = tl.where(alive, lists.logits_of(keys, temperature), float("-inf"))
        z = numerics.canonical(z, tl.max(z, axis=0) == float("inf"), True)
        lost = lists.size_of(z > float("-inf")) != lists.size_of(alive)
        wanted = tl.minimum(tl.maximum(2 * target - total / weight, 0.0), 1.0).to(tl.float32)
        distance = tl.div_rn(tl.abs(p - wanted), tl.full([SIZE], SPREAD, tl.float32))
        above = tl.div_rn(distance * distance * SLOPE, distance + 1.0)
        keys, alive = lists.write(keys, alive & (lost == 0), PEAK - above, SIZE)
        temperature = temperature * 0.0 + 1.0
    w = lists.weights_of(keys, alive, temperature)
    token = lists.draw(keys, w, uniform(place, row, position))
    chosen = tl.sum(tl.where(ids == token, p, 0.0), axis=0).to(tl.float64)
    tl.store(place.next_total + row, tl.where(target >= 0, chosen + decay * total, total))
    tl.store(place.next_weight + row, tl.where(target >= 0, 1.0 + decay * weight, weight))
    return keys, alive, temperature, token


@triton.jit
def double_of(high, low):
    """``high * 2^16 + low`` as float64, rounded once, for numbers from 0 to 2^54."""
    high = high + (low >> 16)
    low = low & 0xFFFF
    exact = ((high << 16) | low).to(tl.float64)
    # From 2^63 on: without the last 8 bits, except for whether any is set.
    upper = (high << 8) | (low >> 8) | ((low & 0xFF) != 0).to(tl.int64)
    return tl.where(high < (1 << 47), exact, upper.to(tl.float64) * 256.0)


@triton.jit
def zipf_exponent(keys, alive, temperature, m, SIZE: tl.constexpr):
    """Numerator and denominator of the paper's s; both are 0 if there is nothing to sum."""
    n = lists.size_of(alive)
    at = tl.arange(0, SIZE)
    keys = numerics.sort_descending(tl.where(alive, keys, numerics.NOTHING), SIZE)
    w = lists.weights_of(keys, at < n, temperature)
    logs = numerics.log2_q32(tl.maximum(w, 1).to(tl.uint64))
    after = tl.minimum(at + 1, SIZE - 1)
    fall = logs - tl.gather(logs, after, 0)
    ranks = numerics.log2_q32((at + 1).to(tl.uint64))
    t = tl.gather(ranks, after, 0) - ranks
    inside = at < tl.minimum(n, m) - 1
    inside = lists.keep_run(inside, tl.gather(w, after, 0) > 0)
    fall, t = tl.where(inside, fall, 0), tl.where(inside, t, 0)
    # Products have up to 70 bits: t is taken in two parts, whose sums stay below 2^55.
    high, low = t >> 16, t & 0xFFFF
    numerator = double_of(tl.sum(high * fall, axis=0), tl.sum(low * fall, axis=0))
    return numerator, double_of(tl.sum(high * t, axis=0), tl.sum(low * t, axis=0))


@triton.jit
def mirostat(place, row, keys, alive, temperature, position, states, n_vocab, SIZE: tl.constexpr):
    """Keeps as many tokens as a Zipf distribution of the same shape has within mu bits, and draws."""
    mu = tl.load(place.mu + row * states + position)
    one = tl.full([], 1, tl.float64)
    numerator, denominator = zipf_exponent(keys, alive, temperature, tl.load(place.m + row), SIZE)
    known = denominator > 0
    s = tl.where(known, numerator / tl.where(known, denominator, one), one)
    vocabulary = numerics.log2_double((tl.zeros([], tl.int32) + n_vocab).to(tl.float64))
    share = vocabulary / tl.full([], numerics.LOG2_E, tl.float64)
    near = tl.abs(s - one) < NEAR
    e = tl.where(near, one, s - one)
    rest = tl.abs(one - numerics.exp2_double(-e * vocabulary))
    rest = numerics.log2_double(tl.where(rest > 0, rest, one))
    log = numerics.log2_double(tl.where(near, tl.where(vocabulary > 0, share, one), tl.abs(e)))
    log_k = tl.where(near, mu - log, log + mu - rest) / tl.where(s > 0, s, one)
    k = numerics.exp2_double(tl.minimum(tl.maximum(log_k, -1.0), 40.0))
    k = tl.maximum(tl.floor(k).to(tl.int64), 1)
    k = tl.where(s < FLAT, tl.full([], 1 << 62, tl.int64), k)
    alive = lists.keep_first(alive, tl.where(known, k, 1))
    return alive, draw_and_move(place, row, keys, alive, temperature, position, mu)
