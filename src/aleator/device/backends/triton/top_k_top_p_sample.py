"""The operator in Triton (contract: docs/operator.md), with delegate tiles: one read of the logits.

``tile_maxima`` reads every logit once and keeps the maximum of each tile of 128, its delegate.  All that
follows looks at a few tiles only, chosen by their delegates: the k largest values lie in the k tiles with
the largest delegates.  ``_row_masses`` sums the weights of rows whose probabilities need the whole row.
``_filter`` has one program per row: it gathers the values that reach a threshold, sorts them if they are
few, and otherwise finds the last key by bisection over the tiles; what is kept is always the prefix of the
order that ends with one key, so that ``_select`` is a comparison.  Masses are integers, so nothing depends on
how rows are cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import triton
import triton.language as tl

from aleator.device.backends.triton.numerics import (
    BEYOND,
    LOG2_E,
    NOTHING,
    ONE,
    canonical,
    ceil_product,
    key_id,
    key_value,
    least_kept,
    log_nearest,
    logit_weight,
    order_key,
    ordered,
    philox_uniform,
    sort_descending,
    value_of,
    weight,
)
from aleator.device.backends.triton.tiles import (
    STEP,
    TILE,
    WIDTH,
    choose_tiles,
    kth_delegate,
    tile_maxima,
)

SMALL, LARGE = 256, 2048  # lists up to here are sorted in registers
FULL = 512  # programs that keep a device busy
MAX_REGISTERS = 128  # of _filter; ptxas, left alone, takes 80 and spills
FIRST_WINDOW = tl.constexpr(
    256
)  # tiles in which a nucleus is looked for first, if top_k_guess is less
NONE, RACE, LIST, DRAW = (tl.constexpr(i) for i in range(4))  # what is wanted besides the set
DIST_STREAM = tl.constexpr(1 << 28)  # docs/numerics.md: purpose 1, ordinal 0, completion 0
PATHS = ("argmax", "top_k", "window", "bisection", "min_p", "all", "refused")


@triton.jit
def _acts(k, limit, n_vocab):
    return (k >= 1) & (k <= limit) & (k <= n_vocab)


@triton.jit
def _row_masses(
    logits, stride, maxima, top_k, top_p, totals, limit, n_vocab, n_tiles,
    PROBS: tl.constexpr, BLOCK_T: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Adds the mass of TILES tiles of logits to the row's total, where something needs it."""
    row = tl.program_id(0).to(tl.int64)
    p = tl.load(top_p + row).to(tl.float32)
    needed = (p > 0.0) & ((p < 1.0) | PROBS) & (_acts(tl.load(top_k + row), limit, n_vocab) == 0)
    if needed:
        t = tl.arange(0, BLOCK_T)
        delegates = tl.load(maxima + row * n_tiles + t, mask=t < n_tiles, other=float("-inf"))
        top = tl.max(delegates, axis=0)
        infinite = top == float("inf")
        tiles = tl.program_id(1) * TILES + tl.arange(0, TILES)
        own = tl.load(maxima + row * n_tiles + tiles, mask=tiles < n_tiles, other=float("-inf"))
        # A tile whose largest weight is 0 is not read again.
        near = ((own - top) * 1.4426950216293335 >= -43.0) & (tiles < n_tiles)
        if infinite:  # rare, so tile by tile
            count = tl.zeros([], tl.int32)
            first = tl.program_id(1) * TILES
            for i in range(first, tl.minimum(first + TILES, n_tiles)):
                one = i * TILE + tl.arange(0, TILE)
                v = tl.load(logits + row * stride + one, mask=one < n_vocab, other=0.0).to(
                    tl.float32
                )
                count += tl.sum((v == float("inf")).to(tl.int32), axis=0)
            tl.atomic_add(totals + row, count.to(tl.int64) << 40)
        elif tl.max(near.to(tl.int32), axis=0) > 0:
            ids = tiles[:, None] * TILE + tl.arange(0, TILE)[None, :]
            x = tl.load(logits + row * stride + ids, mask=ids < n_vocab, other=float("-inf")).to(
                tl.float32
            )
            # Masked tokens and NaN weigh 0 without being canonical.
            w = logit_weight(x, top, LOG2_E)
            tl.atomic_add(totals + row, tl.sum(tl.sum(w, axis=1), axis=0))


@triton.jit
def _emit(
    at, keep, ids, z, top, total, certain, best, row, n_vocab, q, q_stride, eps, listed, probs,
    MODE: tl.constexpr, LOGITS: tl.constexpr,
):  # fmt: skip
    """Write list entries at positions ``at``, or race them; returns the best of the race so far."""
    if LOGITS:
        w = weight(z, top, LOGITS)
        prob = (w.to(tl.float64) / total.to(tl.float64)).to(tl.float32)
        prob = tl.where(certain, 1.0, prob)
    else:
        prob = z
    if MODE == LIST:
        tl.store(listed + row * n_vocab + at, ids.to(tl.int64), mask=keep)
        tl.store(probs + row * n_vocab + at, prob, mask=keep)
    if MODE == RACE:
        noise = tl.load(q + row * q_stride + at, mask=keep, other=1.0)
        score = tl.div_rn(prob, tl.abs(noise) + eps)
        score = tl.where(prob > 0.0, score, -1.0)
        # Larger is better: score, then the lower position; a NaN beats all and spoils the row.
        packed = (ordered(score).to(tl.int64) << 32) | (0xFFFFFFFF - at.to(tl.int64))
        packed = tl.where(noise == noise, packed, BEYOND)
        best = tl.maximum(best, tl.max(tl.where(keep, packed, NOTHING), axis=0))
    return best


@triton.jit
def _block(logits, stride, row, tiles, first, n_selected, n_vocab, infinite, LOGITS: tl.constexpr):
    """Values, ids and validity of STEP selected tiles from ``first``, in id order."""
    slot = first + tl.arange(0, STEP)
    tile = tl.load(tiles + slot, mask=slot < n_selected, other=0)
    ids = tile[:, None] * TILE + tl.arange(0, TILE)[None, :]
    valid = (slot < n_selected)[:, None] & (ids < n_vocab)
    x = tl.load(logits + row * stride + ids, mask=valid, other=0.0).to(tl.float32)
    z = canonical(x, infinite, LOGITS)
    return tl.reshape(z, [WIDTH]), tl.reshape(ids, [WIDTH]), tl.reshape(valid, [WIDTH])


@triton.jit
def _bisect(
    logits, stride, row, tiles, n_selected, n_vocab, infinite, top, wanted, BY_MASS: tl.constexpr,
    LOGITS: tl.constexpr,
):  # fmt: skip
    """The key at which the prefix of the order reaches ``wanted``, a count or a mass, and its mass.

    Any number of values; two bits of the value per pass over the selected tiles, then ties by id.
    """
    found = tl.zeros([], tl.int64)
    for i in range(16):
        unit = tl.full([], 1, tl.int64) << (30 - 2 * i)
        a1 = tl.zeros([WIDTH], tl.int64)
        a2 = tl.zeros([WIDTH], tl.int64)
        a3 = tl.zeros([WIDTH], tl.int64)
        for first in range(0, n_selected, STEP):
            z, _, valid = _block(
                logits, stride, row, tiles, first, n_selected, n_vocab, infinite, LOGITS
            )
            order = tl.where(valid, ordered(z).to(tl.int64) + 2147483648, -1)
            if BY_MASS:
                w = weight(z, top, LOGITS)
            else:
                w = tl.full([WIDTH], 1, tl.int64)
            a1 += tl.where(order >= found + unit, w, 0)
            a2 += tl.where(order >= found + 2 * unit, w, 0)
            a3 += tl.where(order >= found + 3 * unit, w, 0)
        found += unit * (
            (tl.sum(a1, axis=0) >= wanted).to(tl.int64)
            + (tl.sum(a2, axis=0) >= wanted).to(tl.int64)
            + (tl.sum(a3, axis=0) >= wanted).to(tl.int64)
        )
    above = tl.zeros([WIDTH], tl.int64)
    above_mass = tl.zeros([WIDTH], tl.int64)
    for first in range(0, n_selected, STEP):
        z, _, valid = _block(
            logits, stride, row, tiles, first, n_selected, n_vocab, infinite, LOGITS
        )
        w = tl.where(
            valid & (ordered(z).to(tl.int64) + 2147483648 > found), weight(z, top, LOGITS), 0
        )
        above_mass += w
        if BY_MASS:
            above += w
        else:
            above += (valid & (ordered(z).to(tl.int64) + 2147483648 > found)).to(tl.int64)
    rest = wanted - tl.sum(above, axis=0)
    order = (found - 2147483648).to(tl.int32)
    each = weight(value_of(order), top, LOGITS)
    if BY_MASS:  # ties of equal weight: the least count that holds the rest, without a division
        ties = tl.zeros([], tl.int64)
        for i in range(23):
            more = ties + (tl.full([], 4194304, tl.int64) >> i)
            ties = tl.where(more * each < rest, more, ties)
        rest = ties + 1
    seen = tl.zeros([], tl.int64)
    last = tl.zeros([], tl.int64) - 1
    for first in range(0, n_selected, STEP):
        z, ids, valid = _block(
            logits, stride, row, tiles, first, n_selected, n_vocab, infinite, LOGITS
        )
        tie = valid & (ordered(z) == order)
        rank = seen + tl.cumsum(tie.to(tl.int64), axis=0)
        last = tl.maximum(
            last, tl.max(tl.where(tie & (rank <= rest), ids.to(tl.int64), -1), axis=0)
        )
        seen += tl.sum(tie.to(tl.int64), axis=0)
    mass = tl.sum(above_mass, axis=0) + tl.minimum(rest, seen) * each
    return (order.to(tl.int64) << 32) | (0xFFFFFFFF - last), mass


@triton.jit
def _sorted_list(
    candidates, count, k, p, acts, nucleus, certain, single, row_total, complete, limit_key, top, best, row,
    n_vocab, q, q_stride, eps, listed, probs, MODE: tl.constexpr, LOGITS: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Few candidates: sort them, apply the filters, and emit the list.

    Returns the last key kept, whether the filters ended among the candidates, and the race.
    """
    i = tl.arange(0, CAP)
    keys = tl.load(candidates + i, mask=i < count, other=NOTHING)
    keys = sort_descending(keys, CAP)
    z = key_value(keys)
    inside = i < tl.where(acts, tl.minimum(k, count), count)
    w = tl.where(inside, weight(z, top, LOGITS), 0)
    mass = tl.sum(w, axis=0)
    total = tl.where(acts & LOGITS, mass, row_total)
    wanted = tl.where(nucleus, ceil_product(tl.where(nucleus, p, 0.5), total), BEYOND)
    before = tl.cumsum(w, axis=0) - w
    inside = inside & (before < wanted) & (keys >= limit_key) & (i < tl.where(single, 1, count))
    reached = acts | (mass >= wanted) | complete
    last = tl.min(tl.where(inside, keys, BEYOND), axis=0)
    emitted = inside & (keys >= tl.where(reached, NOTHING, BEYOND))
    if MODE == RACE or MODE == LIST:
        best = _emit(
            i, emitted, key_id(keys), z, top, total, certain, best, row, n_vocab, q, q_stride,
            eps, listed, probs, MODE, LOGITS,
        )  # fmt: skip
    if MODE == RACE:  # the winner is looked up by its position
        tl.debug_barrier()
        tl.store(candidates + i, keys, mask=i < count)
        tl.debug_barrier()
    return last, reached, best


@triton.jit
def _gather(
    logits, stride, row, tiles, n_selected, n_vocab, infinite, least_key, out, capacity,
    LOGITS: tl.constexpr,
):  # fmt: skip
    """Appends the keys of at least ``least_key`` in id order, as far as they fit; returns their count."""
    count = tl.zeros([], tl.int32)
    tl.debug_barrier()
    for first in range(0, n_selected, STEP):
        z, ids, valid = _block(
            logits, stride, row, tiles, first, n_selected, n_vocab, infinite, LOGITS
        )
        keys = order_key(z, ids)
        keep = valid & (keys >= least_key)
        place = count + tl.cumsum(keep.to(tl.int32), axis=0) - 1
        tl.store(out + place, keys, mask=keep & (place < capacity))
        count += tl.sum(keep.to(tl.int32), axis=0)
    tl.debug_barrier()
    return count


@triton.jit
def _sort_long(buffers, count, capacity):
    """A stable descending sort by value of keys in id order, a bit at a time; returns where they are."""
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
def _least_value(m, top, LOGITS: tl.constexpr):
    """The ordered int32 of the least value that min-p keeps: bisection over all floats."""
    if LOGITS:
        return least_kept(top, log_nearest(tl.where((m > 0.0) & (m < 1.0), m, 0.5)), LOGITS)
    else:
        return least_kept(top, m.to(tl.float64) * top.to(tl.float64), LOGITS)  # exact


@triton.jit
def _draw(
    logits, stride, row, tiles, n_selected, n_vocab, infinite, top, last, u, fallback,
    LOGITS: tl.constexpr,
):  # fmt: skip
    """The first token in id order whose cumulative mass exceeds floor(u * total / 2^64)."""
    sums = tl.zeros([WIDTH], tl.int64)
    for first in range(0, n_selected, STEP):
        z, ids, valid = _block(
            logits, stride, row, tiles, first, n_selected, n_vocab, infinite, LOGITS
        )
        sums += tl.where(valid & (order_key(z, ids) >= last), weight(z, top, LOGITS), 0)
    total = tl.sum(sums, axis=0)
    target = tl.umulhi(u, total.to(tl.uint64)).to(tl.int64)
    token = tl.full([], BEYOND, tl.int64)
    mass = tl.zeros([], tl.int64)
    for first in range(0, n_selected, STEP):
        z, ids, valid = _block(
            logits, stride, row, tiles, first, n_selected, n_vocab, infinite, LOGITS
        )
        w = tl.where(valid & (order_key(z, ids) >= last), weight(z, top, LOGITS), 0)
        cumulative = mass + tl.cumsum(w, axis=0)
        passed = tl.where((cumulative > target) & (w > 0), ids.to(tl.int64), BEYOND)
        token = tl.minimum(token, tl.min(passed, axis=0))
        mass += tl.sum(w, axis=0)
    return tl.where(total > 0, token, fallback)


@triton.jit
def _emit_by_id(
    logits, stride, row, tiles, n_selected, n_vocab, infinite, last, top, total, best, token, q, q_stride,
    eps, listed, probs, MODE: tl.constexpr, LOGITS: tl.constexpr,
):  # fmt: skip
    """List or race the keys of at least ``last`` in id order; returns the race and its token."""
    seen = tl.zeros([], tl.int32)
    for first in range(0, n_selected, STEP):
        z, ids, valid = _block(
            logits, stride, row, tiles, first, n_selected, n_vocab, infinite, LOGITS
        )
        keep = valid & (order_key(z, ids) >= last)
        at = seen + tl.cumsum(keep.to(tl.int32), axis=0) - 1
        winner = _emit(
            at, keep, ids, z, top, total, False, best, row, n_vocab, q, q_stride, eps, listed, probs,
            MODE, LOGITS,
        )  # fmt: skip
        if winner > best:
            place = 0xFFFFFFFF - (winner & 0xFFFFFFFF)
            token = tl.sum(tl.where(keep & (at == place), ids.to(tl.int64), 0), axis=0)
        best = winner
        seen += tl.sum(keep.to(tl.int32), axis=0)
    return best, token


@triton.jit
def _filter(
    logits, stride, maxima, totals, top_k, top_p, min_p, q, q_stride, seeds, positions, eps, guess,
    limit, n_vocab, n_tiles, tiles, candidates, buffers, races, tokens, listed, probs, last_keys, tops,
    paths, HAS_MIN_P: tl.constexpr, MODE: tl.constexpr, NEED_LIST: tl.constexpr, LOGITS: tl.constexpr,
    BLOCK_T: tl.constexpr, CAP_SMALL: tl.constexpr, CAP_LARGE: tl.constexpr,
):  # fmt: skip
    """One row: what is kept of it, as the last key of the order, its list, and its token."""
    row = tl.program_id(0).to(tl.int64)
    t = tl.arange(0, BLOCK_T)
    delegates = tl.load(maxima + row * n_tiles + t, mask=t < n_tiles, other=float("-inf"))
    top = tl.max(delegates, axis=0)
    infinite = (top == float("inf")) & LOGITS
    k = tl.load(top_k + row)
    p = tl.load(top_p + row).to(tl.float32)
    m = p * 0.0
    if HAS_MIN_P:
        m = tl.load(min_p + row).to(tl.float32)
    if LOGITS:
        bad = top == float("-inf")
        top = tl.where(infinite, 0.0, top)
        delegates = tl.where(
            infinite, tl.where(delegates == float("inf"), 0.0, float("-inf")), delegates
        )
    else:
        bad = (top == float("inf")) | (top <= 0.0)
    bad = bad | (p != p) | (m != m)
    tl.store(tops + row, tl.where(infinite, float("inf"), top))
    tiles += row * n_tiles
    candidates += row * CAP_LARGE
    if bad:
        tl.store(tokens + row, -1)
        tl.store(last_keys + row, BEYOND)
        tl.atomic_add(paths + 6, 1)
    else:
        acts = _acts(k, limit, n_vocab)
        nucleus = (p > 0.0) & (p < 1.0)
        single = (p <= 0.0) | (m >= 1.0)
        # The first token of the order: in the first tile with the largest delegate.
        tile = tl.min(tl.where(delegates == top, t, BLOCK_T), axis=0)
        ids = tile * TILE + tl.arange(0, TILE)
        x = tl.load(logits + row * stride + ids, mask=ids < n_vocab, other=0.0).to(tl.float32)
        x = tl.where(ids < n_vocab, canonical(x, infinite, LOGITS), float("-inf"))
        argmax = tl.min(tl.where(x == top, ids, 0x7FFFFFFF), axis=0).to(tl.int64)
        first_key = (ordered(top).to(tl.int64) << 32) | (0xFFFFFFFF - argmax)
        token = argmax
        last = first_key
        path = 0
        # Without a list to write, one token is a set of its own.
        if (NEED_LIST > 0) & ((NEED_LIST > 1) | (single == 0)):
            row_total = tl.load(totals + row) if LOGITS else tl.full([], ONE, tl.int64)
            limit_key = tl.full([], NOTHING, tl.int64)
            if (m > 0.0) & (m < 1.0):
                limit_key = _least_value(m, top, LOGITS) << 32
            limit_key = tl.where(single, first_key, limit_key)
            best = tl.full([], NOTHING, tl.int64)
            if acts | nucleus | ((p <= 0.0) | (m >= 1.0)):
                # In order.  Tiles that surely hold the top k, or in which a nucleus is likely.
                quota = tl.where(acts, k, tl.where(nucleus, tl.maximum(guess, FIRST_WINDOW), 1))
                quota = tl.minimum(quota, n_tiles)
                least = tl.full([], float("-inf"), tl.float32)
                if n_tiles > 1:
                    enough = kth_delegate(delegates, t, n_tiles, quota)
                    least = tl.where(acts & (k > n_tiles), least, enough)
                n_selected = choose_tiles(
                    delegates, t, n_tiles, least, tl.where(acts, quota, n_tiles), tiles
                )
                floor_key = ordered(least).to(tl.int64) << 32
                count = _gather(
                    logits, stride, row, tiles, n_selected, n_vocab, infinite, floor_key, candidates,
                    CAP_LARGE, LOGITS,
                )  # fmt: skip
                complete = (count == n_vocab) | ((acts == 0) & (nucleus == 0))
                reached = count < 0
                last = tl.full([], NOTHING, tl.int64)
                if count <= CAP_SMALL:
                    last, reached, best = _sorted_list(
                        candidates, count, k, p, acts, nucleus, (p <= 0.0) & LOGITS, single, row_total,
                        complete, limit_key, top, best, row, n_vocab, q, q_stride, eps, listed, probs,
                        MODE, LOGITS, CAP_SMALL,
                    )  # fmt: skip
                else:
                    if count <= CAP_LARGE:
                        last, reached, best = _sorted_list(
                            candidates, count, k, p, acts, nucleus, (p <= 0.0) & LOGITS, single,
                            row_total, complete, limit_key, top, best, row, n_vocab, q, q_stride, eps,
                            listed, probs, MODE, LOGITS, CAP_LARGE,
                        )  # fmt: skip
                if MODE == RACE:
                    if reached & (best != BEYOND):
                        token = key_id(tl.load(candidates + (0xFFFFFFFF - (best & 0xFFFFFFFF))))
                path = tl.where(acts, 1, tl.where(nucleus, 2, 0))
                if reached == 0:
                    path = 3
                    total = row_total
                    last_k = tl.full([], NOTHING, tl.int64)
                    if acts:
                        last_k, mass = _bisect(
                            logits, stride, row, tiles, n_selected, n_vocab, infinite, top,
                            k.to(tl.int64), False, LOGITS,
                        )  # fmt: skip
                        if LOGITS:
                            total = mass
                    else:
                        n_selected = choose_tiles(
                            delegates, t, n_tiles, float("-inf"), n_tiles, tiles
                        )
                    last = last_k
                    if nucleus:
                        wanted = ceil_product(p, total)
                        last_p, mass = _bisect(
                            logits, stride, row, tiles, n_selected, n_vocab, infinite, top, wanted,
                            True, LOGITS,
                        )  # fmt: skip
                        last = tl.maximum(last, tl.where(mass >= wanted, last_p, NOTHING))
                    last = tl.maximum(last, limit_key)
                    if MODE == RACE or MODE == LIST:
                        count = _gather(
                            logits, stride, row, tiles, n_selected, n_vocab, infinite, last,
                            buffers + row * 2 * n_vocab, n_vocab, LOGITS,
                        )  # fmt: skip
                        keys = buffers + row * 2 * n_vocab
                        keys += _sort_long(keys, count, n_vocab)
                        for first in range(0, count, WIDTH):
                            at = first + tl.arange(0, WIDTH)
                            own = tl.load(keys + at, mask=at < count, other=NOTHING)
                            best = _emit(
                                at, at < count, key_id(own), key_value(own), top, total,
                                (p <= 0.0) & LOGITS, best, row, n_vocab, q, q_stride, eps, listed,
                                probs, MODE, LOGITS,
                            )  # fmt: skip
                        if MODE == RACE:
                            if best != BEYOND:
                                token = key_id(tl.load(keys + (0xFFFFFFFF - (best & 0xFFFFFFFF))))
            else:
                # By id: everything, or what min-p keeps.
                path = tl.where(m > 0.0, 4, 5)
                last = limit_key
                n_selected = n_tiles * 0
                if (m > 0.0) | (MODE == DRAW):
                    least = value_of((limit_key >> 32).to(tl.int32))
                    least = tl.where(m > 0.0, least, float("-inf"))
                    n_selected = choose_tiles(delegates, t, n_tiles, least, n_tiles, tiles)
                if MODE == RACE or MODE == LIST:
                    if m > 0.0:
                        best, token = _emit_by_id(
                            logits, stride, row, tiles, n_selected, n_vocab, infinite, last, top,
                            row_total, best, token, q, q_stride, eps, listed, probs, MODE, LOGITS,
                        )  # fmt: skip
                    else:
                        if MODE == RACE:
                            best = tl.load(races + row)  # _race_row's: position is id
                            token = 0xFFFFFFFF - (best & 0xFFFFFFFF)
            if MODE == RACE:
                token = tl.where(best == BEYOND, -1, token)
            if MODE == DRAW:
                u = philox_uniform(
                    tl.zeros([], tl.int32), tl.load(seeds + row), tl.load(positions + row),
                    tl.full([], DIST_STREAM, tl.int64),
                )  # fmt: skip
                token = _draw(
                    logits, stride, row, tiles, n_selected, n_vocab, infinite, top, last, u, argmax,
                    LOGITS,
                )  # fmt: skip
        if MODE != LIST:
            tl.store(tokens + row, token)
        tl.store(last_keys + row, last)
        tl.atomic_add(paths + path, 1)


@triton.jit
def _emit_rows(
    logits, stride, maxima, totals, top_k, top_p, min_p, q, q_stride, eps, limit, n_vocab, n_tiles,
    races, listed, probs, HAS_MIN_P: tl.constexpr, MODE: tl.constexpr, LOGITS: tl.constexpr,
    BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Rows that nothing filters: list or race all their tokens, WIDTH per program."""
    row = tl.program_id(0).to(tl.int64)
    p = tl.load(top_p + row).to(tl.float32)
    m = p * 0.0
    if HAS_MIN_P:
        m = tl.load(min_p + row).to(tl.float32)
    if (p >= 1.0) & (m <= 0.0) & (_acts(tl.load(top_k + row), limit, n_vocab) == 0):
        t = tl.arange(0, BLOCK_T)
        delegates = tl.load(maxima + row * n_tiles + t, mask=t < n_tiles, other=float("-inf"))
        top = tl.max(delegates, axis=0)
        if LOGITS:
            bad = top == float("-inf")
        else:
            bad = (top == float("inf")) | (top <= 0.0)
        if bad == 0:
            infinite = (top == float("inf")) & LOGITS
            ids = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
            x = tl.load(logits + row * stride + ids, mask=ids < n_vocab, other=0.0).to(tl.float32)
            total = tl.load(totals + row) if LOGITS else tl.full([], ONE, tl.int64)
            best = _emit(
                ids, ids < n_vocab, ids, canonical(x, infinite, LOGITS), tl.where(infinite, 0.0, top),
                total, False, tl.full([], NOTHING, tl.int64), row, n_vocab, q, q_stride, eps, listed,
                probs, MODE, LOGITS,
            )  # fmt: skip
            if MODE == RACE:
                tl.atomic_max(races + row, best)


@triton.jit
def _select(logits, stride, last_keys, tops, select, n_vocab, LOGITS: tl.constexpr):
    """The logits of what is kept, and -inf (0 for probabilities) elsewhere."""
    row = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    x = tl.load(logits + row * stride + ids, mask=ids < n_vocab, other=0.0).to(tl.float32)
    infinite = (tl.load(tops + row) == float("inf")) & LOGITS
    z = canonical(x, infinite, LOGITS)
    keep = order_key(z, ids) >= tl.load(last_keys + row)
    shown = tl.where(infinite, tl.where(z == 0.0, float("inf"), z), z)
    tl.store(
        select + row * n_vocab + ids, tl.where(keep, shown, float("-inf") if LOGITS else 0.0),
        mask=ids < n_vocab,
    )  # fmt: skip


_counters: dict[torch.device, torch.Tensor] = {}


def counters(device: torch.device) -> torch.Tensor:
    """How many rows took each of ``PATHS`` on this device; int64, allocated once."""
    if device not in _counters:
        _counters[device] = torch.zeros(len(PATHS), dtype=torch.int64, device=device)
    return _counters[device]


def run(call: Any, outputs: Iterable[torch.Tensor | None]) -> None:
    """Write the outputs that are not ``None``; no host synchronisation, so a CUDA graph can capture it.

    The arguments (``aleator.ops.arguments.Call``) have been checked; rows of ``logits`` and ``q`` are
    contiguous.
    """
    logits, q, seeds, input_is_logits = call.logits, call.q, call.seeds, call.input_is_logits
    limit, eps = call.limit, call.eps
    indices, select, listed, probs = outputs
    rows, n_vocab = logits.shape
    n_tiles = triton.cdiv(n_vocab, 128)
    device, options = logits.device, {"enable_fp_fusion": False}
    mode = (
        LIST if listed is not None else RACE if q is not None else NONE if seeds is None else DRAW
    )
    mode = mode.value
    in_order = mode in (LIST.value, RACE.value)
    need_list = 2 if in_order else int(select is not None or mode == DRAW.value)

    def empty(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    maxima = empty(rows, n_tiles, dtype=torch.float32)
    totals = torch.zeros(rows, dtype=torch.int64, device=device)
    tops, last_keys = empty(rows, dtype=torch.float32), empty(rows)
    tiles, candidates = empty(rows, n_tiles, dtype=torch.int32), empty(rows, LARGE)
    buffers = empty(rows, 2, n_vocab) if in_order and n_vocab > SMALL else candidates
    races = torch.full((rows,), -(2**63), dtype=torch.int64, device=device)
    tokens = empty(rows) if indices is None else indices
    if listed is not None and probs is not None:
        listed.zero_()
        probs.zero_()
    k, p, m, s, n = (
        other if given is None else given.reshape(-1).contiguous()
        for given, other in (
            (call.top_k, None), (call.top_p, None), (call.min_p, maxima), (seeds, totals),
            (call.positions, totals),
        )
    )  # fmt: skip
    has_min_p, block_t = call.min_p is not None, max(16, triton.next_power_of_2(n_tiles))
    noise = maxima if q is None else q
    lists = candidates if listed is None else listed
    list_probs = maxima if probs is None else probs
    stride, q_stride = logits.stride(0), noise.stride(0)
    guess = max(0, min(call.top_k_guess, n_vocab))
    # Programs of the sweeps take 64 tiles, and few rows are cut finer, so that every processor has work.
    cut = 64 if rows * triton.cdiv(n_tiles, 64) >= FULL else 8
    tile_maxima[(rows, triton.cdiv(n_tiles, cut))](
        logits,
        stride,
        maxima,
        n_vocab,
        n_tiles,
        LOGITS=input_is_logits,
        TILES=cut,
        num_warps=4,
        **options,
    )
    slices = (rows, triton.cdiv(n_tiles, STEP.value))
    if input_is_logits and need_list:
        _row_masses[(rows, triton.cdiv(n_tiles, cut))](
            logits, stride, maxima, k, p, totals, limit, n_vocab, n_tiles, PROBS=in_order,
            BLOCK_T=block_t, TILES=cut, num_warps=4, **options,
        )  # fmt: skip
    if in_order:
        _emit_rows[slices](
            logits, stride, maxima, totals, k, p, m, noise, q_stride, eps, limit, n_vocab, n_tiles, races,
            lists, list_probs, HAS_MIN_P=has_min_p, MODE=mode, LOGITS=input_is_logits,
            BLOCK_T=block_t, num_warps=4, **options,
        )  # fmt: skip
    _filter[(rows,)](
        logits, stride, maxima, totals, k, p, m, noise, q_stride, s, n, eps, guess, limit, n_vocab,
        n_tiles, tiles, candidates, buffers, races, tokens, lists, list_probs, last_keys, tops,
        counters(device), HAS_MIN_P=has_min_p, MODE=mode, NEED_LIST=need_list,
        LOGITS=input_is_logits, BLOCK_T=block_t, CAP_SMALL=SMALL, CAP_LARGE=LARGE, num_warps=8,
        maxnreg=MAX_REGISTERS, **options,
    )  # fmt: skip
    if select is not None:
        _select[slices](
            logits, stride, last_keys, tops, select, n_vocab, LOGITS=input_is_logits, num_warps=4,
            **options,
        )  # fmt: skip


def paths(device: Any, reset: bool) -> dict[str, int]:
    """The counters by name; waits for the device."""
    counts = counters(torch.device(device))
    result = dict(zip(PATHS, counts.tolist(), strict=True))
    if reset:
        counts.zero_()
    return result
