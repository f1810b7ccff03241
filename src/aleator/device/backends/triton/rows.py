"""What a device chain's rows go through after the sweep that made their delegates.

``choose`` has one program per row: it finds the row's first candidates by their delegates, puts them into a
list, and lets the samplers work on that.  Where the list is not enough to tell what a sampler keeps, or
the token is drawn from the whole row, ``whole`` does it on all candidates: what top-k, top-p and min-p keep
is all that stands at or before one key of the order, found by bisection.  ``group_masses`` sums
weights over groups of tiles for rows that need their whole mass.  ``accept`` appends the tokens.
"""

from __future__ import annotations

import triton
import triton.language as tl

from aleator.device.backends.triton import adapting, candidates, lists, sparse
from aleator.device.backends.triton import places as samplers
from aleator.device.backends.triton.candidates import LOGITS
from aleator.device.backends.triton.numerics import (
    COLDEST,
    NOTHING,
    ceil_fraction,
    key_id,
    scale_of,
)
from aleator.device.backends.triton.tiles import choose_tiles

UNDECIDED = tl.constexpr(-2)  # a token that the list could not tell
PATHS = ("list", "window", "whole", "refused", "torch", "tiles")
"""How many rows took each path, and how many tiles were read again to make lists."""
AT_LIST, AT_WINDOW, AT_WHOLE, AT_REFUSED, AT_TORCH, AT_TILES = (tl.constexpr(i) for i in range(6))


@triton.jit
def row_state(work, row, n_tiles, H: tl.constexpr, BLOCK_T: tl.constexpr):
    """Canonical delegates, the largest logit, whether a +inf was there, and whether only the table is left."""
    if H > 0:
        t = tl.arange(0, BLOCK_T)
        delegates = tl.load(work.maxima + row * n_tiles + t, mask=t < n_tiles, other=float("-inf"))
        flag = tl.load(work.flags + row)
        top = tl.load(work.tops + row)
        infinite = (flag & sparse.INFINITE) != 0
        dead = (flag & sparse.DEAD) != 0
        delegates = tl.where(dead, float("-inf"), candidates.at_infinity(delegates, infinite))
    else:
        delegates, top, infinite = candidates.delegates_of(
            work.maxima + row * n_tiles, n_tiles, BLOCK_T
        )
        dead = infinite & (infinite == 0)
    return delegates, top, infinite, dead


@triton.jit
def group_masses(
    logits, wanted, work, sizes, H: tl.constexpr, BLOCK_T: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """The mass of each STEP tiles, without the table's tokens, in rows that have a scale."""
    row = tl.program_id(0).to(tl.int64)
    n_tiles, n_groups = sizes.n_tiles, sizes.n_groups
    c = tl.load(wanted.scale + row)
    if c > 0:
        _, top, infinite, dead = row_state(work, row, n_tiles, H, BLOCK_T)
        source = candidates.source_of(logits, work, row, sizes, top, infinite, dead, H)
        candidates.store_masses(
            source, work.maxima + row * n_tiles, work.masses + row * n_groups, c, n_tiles, n_groups,
            LOGITS, H, TILES,
        )  # fmt: skip


@triton.jit
def choose(
    logits, wanted, work, places, history, tokens, sizes, KINDS: tl.constexpr, H: tl.constexpr,
    BIASES: tl.constexpr, SIZE: tl.constexpr, CAP: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_G: tl.constexpr, REPORT: tl.constexpr,
):  # fmt: skip
    """One row: its first candidates, and what its samplers make of them.

    REPORT: ``listed`` gets the keys that are left and their weights, in SIZE columns each.
    """
    row = tl.program_id(0).to(tl.int64)
    n_vocab, n_tiles, n_groups = sizes.n_vocab, sizes.n_tiles, sizes.n_groups
    want = tl.load(wanted.path + row)
    n = tl.load(wanted.size + row)
    c = tl.load(wanted.scale + row)
    start = tl.load(wanted.start + row)
    bits = tl.load(wanted.active + row * ((len(KINDS) + 31) // 32))
    position = tl.load(history.position + row)
    length = tl.load(history.length + row)
    delegates, top, infinite, dead = row_state(work, row, n_tiles, H, BLOCK_T)
    if (top == float("-inf")) | (want == AT_TORCH):
        tl.store(tokens + row, -1)
        tl.atomic_add(work.paths + tl.where(want == AT_TORCH, AT_TORCH, AT_REFUSED), 1)
        if REPORT:
            column = row * 2 * SIZE + tl.arange(0, SIZE)
            tl.store(work.listed + column, tl.full([SIZE], NOTHING, tl.int64))
            tl.store(work.listed + column + SIZE, tl.zeros([SIZE], tl.int64))
    else:
        source = candidates.source_of(logits, work, row, sizes, top, infinite, dead, H)
        keys, count = candidates.first_keys(
            source, delegates, n, n_tiles, work.buffers + row * CAP, work.paths, AT_TILES, H, SIZE, CAP,
            BLOCK_T,
        )  # fmt: skip
        at = tl.arange(0, SIZE)
        tl.store(work.firsts + row, tl.max(keys, axis=0))
        alive = (at < n) & (keys > NOTHING)
        outside = (count >= n) & (n < n_vocab)
        total = tl.zeros([], tl.int64)
        if c > 0:
            total = candidates.mass_of(work.masses + row * n_groups, n_groups, BLOCK_G)
            if H > 0:
                total += candidates.table_mass(source, c, H)
        temperature = tl.full([], 1, tl.float64)
        full = tl.zeros([], tl.int64)
        token = tl.full([], -1, tl.int64)
        enough = n > 0
        for i in tl.static_range(len(KINDS)):
            place = places[i]
            if i > 0 and i % 32 == 0:
                bits = tl.load(wanted.active + row * ((len(KINDS) + 31) // 32) + i // 32)
            active = ((bits >> (i % 32)) & 1) != 0
            if KINDS[i] == samplers.LOGIT_BIAS or KINDS[i] == samplers.BAN:
                # `look_back` may have written it
                active = active & (tl.load(place.active + row) != 0)
            if KINDS[i] == samplers.TEMPERATURE:
                factor = tl.load(place.low + row)
                if tl.load(place.dynamic + row) != 0:
                    factor = samplers.dynamic_temperature(
                        keys, alive, temperature, factor, tl.load(place.high + row),
                        tl.load(place.exponent + row),
                    )  # fmt: skip
                outside = outside & (temperature * factor > COLDEST)  # cold: the first is enough
                alive, temperature, full = samplers.apply_temperature(
                    keys, alive, temperature, full, factor
                )
            elif KINDS[i] == samplers.TOP_K:
                k = tl.load(place.k + row)
                alive = tl.where(active, lists.keep_first(alive, k), alive)
                enough = enough & ((active == 0) | (outside == 0) | (k <= n))
                outside = outside & (active == 0)
            elif KINDS[i] == samplers.SOFTMAX:
                own = tl.sum(lists.weights_of(keys, alive, temperature), axis=0)
                full = tl.where(active, tl.where(outside, total, own), full)
            elif KINDS[i] == samplers.TOP_P:
                if active:
                    alive, certain = samplers.top_p(
                        place, row, keys, alive, temperature, full, outside, total
                    )
                    enough = enough & certain
                    outside = outside & (outside == 0)
            elif KINDS[i] == samplers.MIN_P:
                if active:
                    alive, certain = samplers.min_p(place, row, keys, alive, temperature, outside)
                    enough = enough & certain
                    outside = outside & (outside == 0)
            elif KINDS[i] == samplers.TYPICAL_P:
                if active:
                    alive = samplers.typical_p(place, row, keys, alive, temperature, SIZE)
            elif KINDS[i] == samplers.TOP_N_SIGMA:
                if active:
                    alive = samplers.top_n_sigma(place, row, keys, alive)
            elif KINDS[i] == samplers.P_LESS:
                if active:
                    alive = samplers.p_less(place, row, keys, alive, temperature)
            elif KINDS[i] == samplers.TOP_H:
                if active:
                    alive = samplers.top_h(place, row, keys, alive, temperature)
            elif KINDS[i] == samplers.MIN_K:
                if active:
                    alive = samplers.min_k(place, row, keys, alive, SIZE)
            elif KINDS[i] == samplers.XTC:
                if active:
                    alive = samplers.xtc(place, row, keys, alive, temperature, position)
            elif KINDS[i] == samplers.LOGIT_BIAS:
                if active & (i >= start):
                    keys, alive = samplers.late_bias(
                        place, row, keys, alive, temperature, n_vocab, BIASES, SIZE
                    )
                    temperature, full = temperature * 0.0 + 1.0, full * 0
            elif KINDS[i] == samplers.PENALTIES:
                if active & (i >= start) & (tl.minimum(tl.load(place.window + row), length) > 0):
                    keys, alive = samplers.late_penalties(
                        place, row, keys, alive, temperature, history, length, sizes.max_tokens, SIZE,
                    )  # fmt: skip
                    temperature, full = temperature * 0.0 + 1.0, full * 0
            elif KINDS[i] == samplers.TOKEN_MASK:
                if active & (i >= start):
                    alive = lists.keep_allowed(keys, alive, place.words + row * sizes.n_words)
            elif KINDS[i] == samplers.BAN:
                if active & (i >= start):
                    keys, alive = samplers.ban(
                        place, row, keys, alive, temperature, sizes.n_words, SIZE
                    )
                    temperature, full = temperature * 0.0 + 1.0, full * 0
            elif KINDS[i] == samplers.SMOOTHING:
                if active:
                    keys, alive = samplers.smoothing(place, row, keys, alive, temperature, SIZE)
                    temperature, full = temperature * 0.0 + 1.0, full * 0
            elif KINDS[i] == samplers.EPSILON_CUTOFF:
                if active:
                    alive = samplers.epsilon_cutoff(place, row, keys, alive, temperature)
            elif KINDS[i] == samplers.ETA_CUTOFF:
                if active:
                    alive = samplers.eta_cutoff(place, row, keys, alive, temperature)
            elif KINDS[i] == samplers.GREEDY:
                token = tl.where(active, lists.first_id(keys, alive), token)
            elif KINDS[i] == samplers.DIST:
                if active:
                    w = lists.weights_of(keys, alive, temperature)
                    token = lists.draw(keys, w, samplers.uniform(place, row, position))
                    enough = enough & (outside == 0)
            elif KINDS[i] == samplers.GUMBEL:
                if active:
                    w = lists.weights_of(keys, alive, temperature)
                    token = lists.race(
                        keys, w, tl.load(place.seed + row), position, tl.load(place.stream + row)
                    )
            elif KINDS[i] == samplers.WATERMARK:
                if active:
                    w = lists.weights_of(keys, alive, temperature)
                    seed, at_hash, word = samplers.watermark(
                        place, row, history, length, position, sizes.max_tokens
                    )
                    token = lists.race(keys, w, seed, at_hash, word)
            elif KINDS[i] == samplers.SYNTHID:
                if active:
                    w = lists.weights_of(keys, alive, temperature)
                    w = samplers.tournament(
                        place, row, keys, w, history, length, position, sizes.max_tokens
                    )
                    token = lists.draw(keys, w, samplers.uniform(place, row, position))
            elif KINDS[i] == samplers.MIROSTAT_V2:
                if active:
                    alive, token = samplers.mirostat_v2(
                        place, row, keys, alive, temperature, position, sizes.max_tokens + 1
                    )
            elif KINDS[i] == samplers.MIROSTAT:
                if active:
                    alive, token = adapting.mirostat(
                        place, row, keys, alive, temperature, position, sizes.max_tokens + 1,
                        n_vocab, SIZE,
                    )  # fmt: skip
            elif KINDS[i] == samplers.ADAPTIVE_P:
                if active:
                    keys, alive, temperature, token = adapting.adaptive_p(
                        place, row, keys, alive, temperature, position, sizes.max_tokens + 1, SIZE
                    )
        token = tl.where(lists.size_of(alive) > 0, token, -1)
        tl.store(tokens + row, tl.where(enough, token, UNDECIDED))
        tl.atomic_add(work.paths + tl.where(enough, want, AT_WHOLE), 1)
        if REPORT:
            tl.store(work.listed + row * 2 * SIZE + at, tl.where(alive, keys, NOTHING))
            w = lists.weights_of(keys, alive, temperature)
            tl.store(work.listed + row * 2 * SIZE + SIZE + at, w)


@triton.jit
def whole(
    logits, wanted, work, places, history, tokens, sizes, KINDS: tl.constexpr, H: tl.constexpr,
    CAP: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    """One row that its list could not decide: samplers that keep a beginning of the order, and a draw."""
    row = tl.program_id(0).to(tl.int64)
    bits = tl.load(wanted.active + row * ((len(KINDS) + 31) // 32))
    if tl.load(tokens + row) == UNDECIDED:
        n_tiles, n_groups = sizes.n_tiles, sizes.n_groups
        delegates, top, infinite, dead = row_state(work, row, n_tiles, H, BLOCK_T)
        source = candidates.source_of(logits, work, row, sizes, top, infinite, dead, H)
        n_selected = choose_tiles(delegates, n_tiles, float("-inf"), source.tiles, BLOCK_T)  # all
        first = tl.load(work.firsts + row)
        last = tl.full([], NOTHING, tl.int64)  # what stands before or at it is left
        temperature = tl.full([], 1, tl.float64)
        full = tl.zeros([], tl.int64)
        token = tl.full([], -1, tl.int64)
        for i in tl.static_range(len(KINDS)):
            place = places[i]
            if i > 0 and i % 32 == 0:
                bits = tl.load(wanted.active + row * ((len(KINDS) + 31) // 32) + i // 32)
            active = ((bits >> (i % 32)) & 1) != 0
            if KINDS[i] == samplers.TEMPERATURE:
                factor = tl.load(place.low + row)
                product = temperature * factor
                cold = product <= COLDEST
                last = tl.where(cold, tl.maximum(last, first), last)
                full = tl.where(factor == 1.0, full, 0)
                temperature = tl.where(cold, tl.full([], 1, tl.float64), product)
            elif KINDS[i] == samplers.SOFTMAX:
                if active:
                    c = scale_of(temperature)
                    full, _ = candidates.keep_through(source, n_selected, c, last, LOGITS, H)
            elif KINDS[i] == samplers.TOP_K:
                if active:
                    k = tl.load(place.k + row)
                    key = candidates.keep_first(source, n_selected, k, LOGITS, H)
                    last = tl.maximum(last, key)
            elif KINDS[i] == samplers.TOP_P:
                if active:
                    c = scale_of(temperature)
                    mass, _ = candidates.keep_through(source, n_selected, c, last, LOGITS, H)
                    mass = tl.where(tl.load(place.full + row) != 0, full, mass)
                    goal = ceil_fraction(tl.load(place.m + row), tl.load(place.s + row), mass)
                    key = candidates.keep_mass(source, n_selected, c, goal, LOGITS, H)
                    key = tl.minimum(key, first)
                    least = tl.load(place.min_keep + row)
                    if least > 1:
                        other = candidates.keep_first(source, n_selected, least, LOGITS, H)
                        key = tl.minimum(key, other)
                    last = tl.maximum(last, key)
            elif KINDS[i] == samplers.MIN_P:
                if active:
                    bound = (temperature * tl.load(place.log + row)).to(tl.float32)
                    key = tl.maximum(last, candidates.keep_near(top, bound, LOGITS))
                    least = tl.load(place.min_keep + row)
                    if least > 1:
                        _, count = candidates.keep_through(source, n_selected, 1.0, key, LOGITS, H)
                        if count < least:
                            key = candidates.keep_first(source, n_selected, least, LOGITS, H)
                    last = tl.maximum(last, key)
            elif KINDS[i] == samplers.GREEDY:
                token = tl.where(active, key_id(first), token)
            elif KINDS[i] == samplers.DIST:
                if active:
                    u = samplers.uniform(place, row, tl.load(history.position + row))
                    c = scale_of(temperature)
                    ready = (last == NOTHING) & (c == tl.load(wanted.scale + row))
                    token = candidates.draw(
                        source, n_selected, c, last, u, ready, work.masses + row * n_groups,
                        work.buffers + row * CAP, LOGITS, H, BLOCK_G,
                    )  # fmt: skip
        tl.store(tokens + row, token)


@triton.jit
def accept(tokens, history, places, sizes, KINDS: tl.constexpr):
    """Appends each row's token, if it has one."""
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(tokens + row)
    length, position = tl.load(history.length + row), tl.load(history.position + row)
    max_tokens = sizes.max_tokens
    if token >= 0:
        at = row * max_tokens + length
        tl.store(history.tokens + at, token.to(tl.int32))
        tl.store(history.generated + at, token >= 0)
        tl.store(history.length + row, length + 1)
        tl.store(history.position + row, position + 1)
        for i in tl.static_range(len(KINDS)):
            place = places[i]
            after = row * (max_tokens + 1) + position + 1
            if KINDS[i] == samplers.MIROSTAT_V2 or KINDS[i] == samplers.MIROSTAT:
                if tl.load(place.active + row) != 0:
                    tl.store(place.mu + after, tl.load(place.next_mu + row))
            elif KINDS[i] == samplers.ADAPTIVE_P:
                if tl.load(place.active + row) != 0:
                    tl.store(place.total + after, tl.load(place.next_total + row))
                    tl.store(place.weight + after, tl.load(place.next_weight + row))
