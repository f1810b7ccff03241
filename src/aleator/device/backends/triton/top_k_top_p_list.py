"""The operator's lists: kept tokens of a row in order or by id, with probabilities, or raced by noise."""

from __future__ import annotations

import triton
import triton.language as tl

from aleator.device.backends.triton import numerics
from aleator.device.backends.triton.candidates import PROBABILITIES, block_of, mass_of, measure
from aleator.device.backends.triton.lists import in_order, keep_mass
from aleator.device.backends.triton.tiles import STEP, WIDTH

NONE, RACE, LIST, DRAW = (tl.constexpr(i) for i in range(4))
"""The output besides the set of kept tokens."""


@triton.jit
def emit(
    at, keep, ids, z, top, total, certain, best, row, n_vocab, noise, out, MODE: tl.constexpr,
    KIND: tl.constexpr,
):  # fmt: skip
    """Writes the entries of a list at positions ``at``, or races them; returns the best of the race so far.

    ``keep`` says which of the positions are in the list, ``total`` is the mass to divide by, and ``certain``
    says that the probability is 1, for logits.  ``best`` is a key: score, then the lower position.
    """
    prob = z
    if KIND != PROBABILITIES:
        w = measure(z, top, numerics.SCALE, KIND)
        prob = tl.where(certain, 1.0, (w.to(tl.float64) / total.to(tl.float64)).to(tl.float32))
    if MODE == LIST:
        tl.store(out.ids + row * n_vocab + at, ids.to(tl.int64), mask=keep)
        tl.store(out.probs + row * n_vocab + at, prob, mask=keep)
    if MODE == RACE:
        q = tl.load(noise.q + row * noise.stride + at, mask=keep, other=1.0)
        score = tl.div_rn(prob, tl.abs(q) + noise.eps)
        score = tl.where(prob > 0.0, score, -1.0)
        packed = (numerics.ordered(score).to(tl.int64) << 32) | (0xFFFFFFFF - at.to(tl.int64))
        packed = tl.where(q == q, packed, numerics.BEYOND)  # a NaN wins and invalidates the row
        best = tl.maximum(best, tl.max(tl.where(keep, packed, numerics.NOTHING), axis=0))
    return best


@triton.jit
def total_of(work, row, n_groups, KIND: tl.constexpr, BLOCK_G: tl.constexpr):
    """The mass of a row."""
    if KIND == PROBABILITIES:
        return tl.full([], numerics.ONE, tl.int64)
    else:
        return mass_of(work.masses + row * n_groups, n_groups, BLOCK_G)


@triton.jit
def winner_at(best):
    """The position that won a race."""
    return 0xFFFFFFFF - (best & 0xFFFFFFFF)


@triton.jit
def sorted_list(
    buffer, count, k, p, acts, nucleus, certain, single, complete, limit_key, top, best,
    row, n_vocab, n_groups, work, noise, out, MODE: tl.constexpr, KIND: tl.constexpr,
    BLOCK_G: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """For few values: sorts the first ``count`` keys, at most CAP, applies the filters, and emits the list.

    ``complete`` says that no value outside the list can be kept; ``limit_key`` is the last that min-p keeps;
    ``acts``, ``nucleus``, ``certain`` and ``single``: top-k acts, top-p acts, the probability is 1, only the
    first is kept.  Returns the last kept key, whether the filters ended among the values, and the best of the
    race.
    """
    i = tl.arange(0, CAP)
    keys = in_order(buffer, count, CAP)
    z = numerics.key_value(keys)
    inside = i < tl.where(acts, tl.minimum(k, count), count)  # keep_first: all of them stay
    w = tl.where(inside, measure(z, top, numerics.SCALE, KIND), 0)
    mass = tl.sum(w, axis=0)
    total = total_of(work, row, n_groups, KIND, BLOCK_G)
    if KIND != PROBABILITIES:
        total = tl.where(acts, mass, total)
    wanted = tl.where(
        nucleus, numerics.ceil_product(tl.where(nucleus, p, 0.5), total), numerics.BEYOND
    )
    inside = keep_mass(inside, w, wanted)
    inside = inside & (keys >= limit_key) & (i < tl.where(single, 1, count))
    reached = acts | (mass >= wanted) | complete
    last = tl.min(tl.where(inside, keys, numerics.BEYOND), axis=0)
    emitted = inside & (i < tl.where(reached, count, 0))
    if MODE == RACE or MODE == LIST:
        best = emit(
            i, emitted, numerics.key_id(keys), z, top, total, certain, best, row, n_vocab, noise, out,
            MODE, KIND,
        )  # fmt: skip
    if MODE == RACE:  # the winner is looked up by its position
        tl.debug_barrier()
        tl.store(buffer + i, keys, mask=i < count)
        tl.debug_barrier()
    return last, reached, best


@triton.jit
def sort_long(buffers, count, capacity):
    """A stable descending sort by value of keys in id order, bit by bit; returns where they are."""
    source = tl.zeros([], tl.int64)
    j = tl.arange(0, WIDTH)
    for bit in range(32):
        ones = tl.zeros([], tl.int32)
        for first in range(0, count, WIDTH):
            inside = first + j < count
            keys = tl.load(buffers + source + first + j, mask=inside, other=0)
            # The sign bit of the order counts the other way round.
            one = ((keys >> (32 + bit)) & 1) != bit // 31
            ones += tl.sum((inside & one).to(tl.int32), axis=0)
        if (ones > 0) & (ones < count):
            target = tl.zeros([], tl.int64) + capacity - source
            front = tl.zeros([], tl.int32)
            back = ones
            for first in range(0, count, WIDTH):
                inside = first + j < count
                keys = tl.load(buffers + source + first + j, mask=inside, other=0)
                one = (((keys >> (32 + bit)) & 1) != bit // 31) & inside
                zero = inside & (one == 0)
                place = tl.where(
                    one, front + tl.cumsum(one.to(tl.int32), axis=0) - 1,
                    back + tl.cumsum(zero.to(tl.int32), axis=0) - 1,
                )  # fmt: skip
                tl.store(buffers + target + place, keys, mask=inside)
                front += tl.sum(one.to(tl.int32), axis=0)
                back += tl.sum(zero.to(tl.int32), axis=0)
            tl.debug_barrier()
            source = target
    return source


@triton.jit
def long_list(
    keys, count, certain, total, top, best, row, n_vocab, noise, out, MODE: tl.constexpr,
    KIND: tl.constexpr,
):  # fmt: skip
    """Emits a list of sorted keys that is too long to sort in registers."""
    for first in range(0, count, WIDTH):
        at = first + tl.arange(0, WIDTH)
        own = tl.load(keys + at, mask=at < count, other=numerics.NOTHING)
        best = emit(
            at, at < count, numerics.key_id(own), numerics.key_value(own), top, total, certain, best, row,
            n_vocab, noise, out, MODE, KIND,
        )  # fmt: skip
    return best


@triton.jit
def list_by_id(
    source, n_selected, last, total, best, token, row, n_vocab, noise, out, MODE: tl.constexpr,
    KIND: tl.constexpr,
):  # fmt: skip
    """Lists or races the keys of at least ``last`` in id order; returns the race and its token."""
    seen = tl.zeros([], tl.int32)
    for first in range(0, n_selected, STEP):
        z, ids, there = block_of(source, first, n_selected, KIND, 0)
        keep = there & (numerics.order_key(z, ids) >= last)
        at = seen + tl.cumsum(keep.to(tl.int32), axis=0) - 1
        winner = emit(
            at, keep, ids, z, source.top, total, False, best, row, n_vocab, noise, out, MODE, KIND,
        )  # fmt: skip
        if winner > best:
            token = tl.sum(tl.where(keep & (at == winner_at(winner)), ids.to(tl.int64), 0), axis=0)
        best = winner
        seen += tl.sum(keep.to(tl.int32), axis=0)
    return best, token
