"""The operator's kernels (contract: docs/operator.md), on the tiles, prefixes and masses of the chains.

``tile_maxima`` reads every value once and keeps the largest of each tile, its delegate.  ``row_masses`` sums
the weights of rows whose probabilities need the whole row.  ``choose`` has one program per row: it gathers the
values that reach a threshold, sorts them if they are few, and otherwise finds the last key by bisection.
What is kept is always the prefix of the order that ends with one key, so ``select`` is a comparison.
"""

from __future__ import annotations

import triton
import triton.language as tl

from aleator.core.contract import PURPOSE_SHIFT, Purpose
from aleator.device.backends.triton import candidates, numerics
from aleator.device.backends.triton import top_k_top_p_list as lists
from aleator.device.backends.triton.candidates import (
    PROBABILITIES,
    delegates_of,
    gather,
    keep_first,
    keep_mass,
    keep_near,
    keep_through,
    plain_source,
    store_masses,
    tiles_of_first,
)
from aleator.device.backends.triton.tiles import TILE, WIDTH, choose_tiles

FIRST_WINDOW = tl.constexpr(256)  # tiles in which a nucleus is looked for first
DIST_STREAM = tl.constexpr(Purpose.DIST << PURPOSE_SHIFT)  # ordinal 0, completion 0
PATHS = ("argmax", "top_k", "window", "bisection", "min_p", "all", "refused")
"""How many rows took each path."""
AT_ARGMAX, AT_TOP_K, AT_WINDOW, AT_BISECTION, AT_MIN_P, AT_ALL, AT_REFUSED = (
    tl.constexpr(i) for i in range(7)
)


@triton.jit
def filters_of(filters, row, n_vocab, HAS_MIN_P: tl.constexpr):
    """A row's k, p and min-p, and whether top-k acts."""
    k = tl.load(filters.top_k + row)
    p = tl.load(filters.top_p + row).to(tl.float32)
    m = p * 0.0
    if HAS_MIN_P:
        m = tl.load(filters.min_p + row).to(tl.float32)
    return k, p, m, (k >= 1) & (k <= filters.limit) & (k <= n_vocab)


@triton.jit
def row_masses(
    logits, filters, work, sizes, PROBS: tl.constexpr, KIND: tl.constexpr, BLOCK_T: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    """The mass of each STEP tiles of logits, in rows where something needs it."""
    row = tl.program_id(0).to(tl.int64)
    n_vocab, n_tiles, n_groups = sizes.n_vocab, sizes.n_tiles, sizes.n_groups
    _k, p, _m, acts = filters_of(filters, row, n_vocab, False)
    if (p > 0.0) & ((p < 1.0) | PROBS) & (acts == 0):
        maxima = work.maxima + row * n_tiles
        _delegates, top, infinite = delegates_of(maxima, n_tiles, BLOCK_T)
        tiles = work.tiles + row * n_tiles
        source = plain_source(logits.data + row * logits.stride, tiles, n_vocab, top, infinite)
        masses = work.masses + row * n_groups
        store_masses(source, maxima, masses, numerics.SCALE, n_tiles, n_groups, KIND, 0, TILES)


@triton.jit
def is_bad(top, p, m, KIND: tl.constexpr):
    """Whether nothing can be selected in a row."""
    if KIND == PROBABILITIES:
        bad = top <= 0.0  # that of a row with values outside [0, 1] is 0
    else:
        bad = top == float("-inf")
    return bad | (p != p) | (m != m)


@triton.jit
def last_near(m, top, KIND: tl.constexpr):
    """A key at or before which stands what min-p keeps."""
    if KIND == PROBABILITIES:
        return keep_near(top, m.to(tl.float64) * top.to(tl.float64), KIND)  # exact
    else:
        return keep_near(top, numerics.log_nearest(tl.where((m > 0.0) & (m < 1.0), m, 0.5)), KIND)


@triton.jit
def choose(
    logits, filters, noise, work, out, sizes, HAS_MIN_P: tl.constexpr, MODE: tl.constexpr,
    NEED_LIST: tl.constexpr, KIND: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_G: tl.constexpr,
    CAP_SMALL: tl.constexpr, CAP_LARGE: tl.constexpr,
):  # fmt: skip
    """One row: what is kept of it, as the last key of the order, its list, and its token."""
    row = tl.program_id(0).to(tl.int64)
    n_vocab, n_tiles, n_groups = sizes.n_vocab, sizes.n_tiles, sizes.n_groups
    t = tl.arange(0, BLOCK_T)
    delegates, top, infinite = delegates_of(work.maxima + row * n_tiles, n_tiles, BLOCK_T)
    k, p, m, acts = filters_of(filters, row, n_vocab, HAS_MIN_P)
    tl.store(work.tops + row, tl.where(infinite, float("inf"), top))
    x_row = logits.data + row * logits.stride
    source = plain_source(x_row, work.tiles + row * n_tiles, n_vocab, top, infinite)
    buffer = work.buffers + row * CAP_LARGE
    if is_bad(top, p, m, KIND):
        tl.store(out.tokens + row, -1)
        tl.store(work.last + row, numerics.BEYOND)
        tl.atomic_add(work.paths + AT_REFUSED, 1)
    else:
        nucleus = (p > 0.0) & (p < 1.0)
        single = (p <= 0.0) | (m >= 1.0)
        certain = p <= 0.0
        # The first token of the order: in the first tile with the largest delegate.
        tile = tl.min(tl.where(delegates == top, t, BLOCK_T), axis=0)
        ids = tile * TILE + tl.arange(0, TILE)
        x = tl.load(x_row + ids, mask=ids < n_vocab, other=0.0).to(tl.float32)
        x = tl.where(
            ids < n_vocab, numerics.canonical(x, infinite, KIND != PROBABILITIES), float("-inf")
        )
        argmax = tl.min(tl.where(x == top, ids, 0x7FFFFFFF), axis=0).to(tl.int64)
        first_key = numerics.order_key(top, argmax)
        token = argmax
        last = first_key
        if (NEED_LIST == 0) | ((NEED_LIST == 1) & single):  # a set of its own
            tl.atomic_add(work.paths + AT_ARGMAX, 1)
        else:
            limit_key = tl.full([], numerics.NOTHING, tl.int64)
            if (m > 0.0) & (m < 1.0):
                limit_key = last_near(m, top, KIND)
            limit_key = tl.where(single, first_key, limit_key)
            best = tl.full([], numerics.NOTHING, tl.int64)
            if acts | nucleus | single:
                # In order.  Tiles that surely hold the top k, or in which a nucleus is likely.
                window = tl.minimum(tl.maximum(filters.guess, FIRST_WINDOW), n_tiles)
                window = tl.where(n_tiles > 1, window, 2)  # a single tile is gathered whole
                n = tl.where(acts, k, tl.where(nucleus, window, 1))
                quota = tl.where(acts, tl.minimum(k, n_tiles), n_tiles)
                n_selected, floor_key = tiles_of_first(
                    source, delegates, n, quota, n_tiles, BLOCK_T
                )
                count = gather(source, n_selected, floor_key, buffer, CAP_LARGE, KIND, 0)
                complete = (count == n_vocab) | ((acts == 0) & (nucleus == 0))
                reached = count < 0
                last = tl.full([], numerics.NOTHING, tl.int64)
                if count <= CAP_SMALL:
                    last, reached, best = lists.sorted_list(
                        buffer, count, k, p, acts, nucleus, certain, single, complete, limit_key, top,
                        best, row, n_vocab, n_groups, work, noise, out, MODE, KIND, BLOCK_G, CAP_SMALL,
                    )  # fmt: skip
                else:
                    if count <= CAP_LARGE:
                        last, reached, best = lists.sorted_list(
                            buffer, count, k, p, acts, nucleus, certain, single, complete, limit_key, top,
                            best, row, n_vocab, n_groups, work, noise, out, MODE, KIND, BLOCK_G, CAP_LARGE,
                    )  # fmt: skip
                if MODE == lists.RACE:
                    if reached & (best != numerics.BEYOND):
                        token = numerics.key_id(tl.load(buffer + lists.winner_at(best)))
                path = tl.where(acts, AT_TOP_K, tl.where(nucleus, AT_WINDOW, AT_ARGMAX))
                tl.atomic_add(work.paths + tl.where(reached, path, AT_BISECTION), 1)
                if reached == 0:
                    # Read again, like the delegates: lists leave no registers for what comes after them.
                    total = lists.total_of(work, row, n_groups, KIND, BLOCK_G)
                    last = tl.full([], numerics.NOTHING, tl.int64)
                    if acts:
                        last = keep_first(source, n_selected, k.to(tl.int64), KIND, 0)
                        if KIND != PROBABILITIES:
                            total, _kept = keep_through(
                                source, n_selected, numerics.SCALE, last, KIND, 0
                            )
                    else:
                        each, _top, _infinite = delegates_of(
                            work.maxima + row * n_tiles, n_tiles, BLOCK_T
                        )
                        n_selected = choose_tiles(
                            each, n_tiles, float("-inf"), source.tiles, BLOCK_T
                        )
                    if nucleus:
                        wanted = numerics.ceil_product(p, total)
                        end = keep_mass(source, n_selected, numerics.SCALE, wanted, KIND, 0)
                        last = tl.maximum(last, end)
                    last = tl.maximum(last, limit_key)
                    if MODE == lists.RACE or MODE == lists.LIST:
                        keys = work.long + row * 2 * n_vocab
                        count = gather(source, n_selected, last, keys, n_vocab, KIND, 0)
                        keys += lists.sort_long(keys, count, n_vocab)
                        best = lists.long_list(
                            keys, count, certain, total, top, best, row, n_vocab, noise, out, MODE, KIND,
                        )  # fmt: skip
                        if MODE == lists.RACE:
                            if best != numerics.BEYOND:
                                token = numerics.key_id(tl.load(keys + lists.winner_at(best)))
            else:
                # By id: everything, or what min-p keeps.
                tl.atomic_add(work.paths + tl.where(m > 0.0, AT_MIN_P, AT_ALL), 1)
                last = limit_key
                n_selected = n_tiles * 0
                if (m > 0.0) | (MODE == lists.DRAW):
                    least = numerics.value_of((limit_key >> 32).to(tl.int32))
                    least = tl.where(m > 0.0, least, float("-inf"))
                    n_selected = choose_tiles(delegates, n_tiles, least, source.tiles, BLOCK_T)
                if MODE == lists.RACE or MODE == lists.LIST:
                    if m > 0.0:
                        best, token = lists.list_by_id(
                            source, n_selected, last, lists.total_of(work, row, n_groups, KIND, BLOCK_G), best,
                            token, row, n_vocab, noise, out, MODE, KIND,
                        )  # fmt: skip
                    else:
                        if MODE == lists.RACE:
                            best = tl.load(work.races + row)  # of emit_rows: position is id
                            token = lists.winner_at(best)
            if MODE == lists.RACE:
                token = tl.where(best == numerics.BEYOND, -1, token)
            if MODE == lists.DRAW:
                u = numerics.philox_uniform(
                    tl.zeros([], tl.int32), tl.load(noise.seeds + row), tl.load(noise.positions + row),
                    tl.full([], DIST_STREAM, tl.int64),
                )  # fmt: skip
                drawn = candidates.draw(
                    source, n_selected, numerics.SCALE, last, u, False, work.masses + row * n_groups, buffer,
                    KIND, 0, BLOCK_G,
                )  # fmt: skip
                token = tl.where(drawn == numerics.BEYOND, argmax, drawn)
        if MODE != lists.LIST:
            tl.store(out.tokens + row, token)
        tl.store(work.last + row, last)


@triton.jit
def emit_rows(
    logits, filters, noise, work, out, sizes, HAS_MIN_P: tl.constexpr, MODE: tl.constexpr,
    KIND: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    """Rows that nothing filters: lists or races all their tokens, WIDTH per program."""
    row = tl.program_id(0).to(tl.int64)
    n_vocab, n_tiles, n_groups = sizes.n_vocab, sizes.n_tiles, sizes.n_groups
    _k, p, m, acts = filters_of(filters, row, n_vocab, HAS_MIN_P)
    if (p >= 1.0) & (m <= 0.0) & (acts == 0):
        _delegates, top, infinite = delegates_of(work.maxima + row * n_tiles, n_tiles, BLOCK_T)
        if is_bad(top, p, m, KIND) == 0:
            ids = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
            inside = ids < n_vocab
            x = tl.load(logits.data + row * logits.stride + ids, mask=inside, other=0.0)
            z = numerics.canonical(x.to(tl.float32), infinite, KIND != PROBABILITIES)
            best = lists.emit(
                ids, inside, ids, z, top, lists.total_of(work, row, n_groups, KIND, BLOCK_G), False,
                tl.full([], numerics.NOTHING, tl.int64), row, n_vocab, noise, out, MODE, KIND,
            )  # fmt: skip
            if MODE == lists.RACE:
                tl.atomic_max(work.races + row, best)


@triton.jit
def select(logits, work, selected, n_vocab, KIND: tl.constexpr):
    """The logits of what is kept, and -inf (0 for probabilities) elsewhere."""
    row = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = ids < n_vocab
    x = tl.load(logits.data + row * logits.stride + ids, mask=inside, other=0.0).to(tl.float32)
    infinite = tl.load(work.tops + row) == float("inf")
    z = numerics.canonical(x, infinite, KIND != PROBABILITIES)
    keep = numerics.order_key(z, ids) >= tl.load(work.last + row)
    shown = tl.where(infinite, tl.where(z == 0.0, float("inf"), z), z)
    masked = 0.0 if KIND == PROBABILITIES else float("-inf")
    tl.store(selected + row * n_vocab + ids, tl.where(keep, shown, masked), mask=inside)
