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

from aleator.device.backends.triton.layout import Source
from aleator.device.backends.triton.numerics import (
    BEYOND,
    NOTHING,
    canonical,
    ceil_fraction,
    key_id,
    least_kept,
    logit_weight,
    order_key,
    ordered,
    scale_of,
    sort_descending,
)
from aleator.device.backends.triton.places import (
    DIST,
    GREEDY,
    GUMBEL,
    LOGIT_BIAS,
    MIN_P,
    MIROSTAT_V2,
    PENALTIES,
    SOFTMAX,
    TEMPERATURE,
    TOKEN_MASK,
    TOP_K,
    TOP_N_SIGMA,
    TOP_P,
    TYPICAL_P,
    XTC,
    draw,
    dynamic_temperature,
    first_id,
    heat,
    late_bias,
    late_penalties,
    min_p,
    mirostat_v2,
    race,
    size_of,
    token_mask,
    top_n_sigma,
    top_p,
    typical_p,
    uniform,
    weights_of,
    xtc,
)
from aleator.device.backends.triton.sparse import DEAD, INFINITE, bit_of
from aleator.device.backends.triton.tiles import STEP, TILE, WIDTH, choose_tiles, kth_delegate

UNDECIDED = tl.constexpr(-2)  # a token that the list could not tell
PATHS = ("list", "window", "whole", "refused", "torch", "tiles")
"""How many rows took each path, and how many tiles were read again to make lists."""
AT_LIST, AT_WINDOW, AT_WHOLE, AT_REFUSED, AT_TORCH, AT_TILES = (tl.constexpr(i) for i in range(6))


@triton.jit
def row_state(work, row, n_tiles, SPARSE: tl.constexpr, BLOCK_T: tl.constexpr):
    """Canonical delegates, the row's largest logit, and whether a +inf was there."""
    t = tl.arange(0, BLOCK_T)
    delegates = tl.load(work.maxima + row * n_tiles + t, mask=t < n_tiles, other=float("-inf"))
    if SPARSE:
        flag = tl.load(work.flags + row)
        top = tl.load(work.tops + row)
        infinite = (flag & INFINITE) != 0
        dead = (flag & DEAD) != 0
    else:
        top = tl.max(delegates, axis=0)
        infinite = top == float("inf")
        top = tl.where(infinite, 0.0, top)
        dead = infinite & (infinite == 0)
    shown = tl.where(delegates == float("inf"), 0.0, float("-inf"))
    delegates = tl.where(infinite, shown, delegates)
    return tl.where(dead, float("-inf"), delegates), top, infinite, dead


@triton.jit
def source_of(logits, work, row, sizes, H: tl.constexpr):
    """A row's candidates."""
    return Source(
        logits.data + row * logits.stride,
        work.words + row * sizes.n_words,
        work.tiles + row * sizes.n_tiles,
        work.table_ids + row * H,
        work.table_logits + row * H,
    )


@triton.jit
def steps_of(n_selected, SPARSE: tl.constexpr, H: tl.constexpr):
    """The end of a loop over blocks in steps of STEP: the selected tiles, then the table."""
    end = (n_selected + STEP - 1) // STEP * STEP
    if SPARSE:
        end += (H + WIDTH - 1) // WIDTH * STEP
    return end


@triton.jit
def block_of(source, first, n_selected, n_vocab, infinite, SPARSE: tl.constexpr, H: tl.constexpr):
    """Canonical logits and tokens of a block; -inf where there is no candidate.

    ``source``: see ``layout.Source``.
    """
    slot = first + tl.arange(0, STEP)
    tile = tl.load(source.tiles + slot, mask=slot < n_selected, other=0)
    token = tile[:, None] * TILE + tl.arange(0, TILE)[None, :]
    inside = tl.reshape((slot < n_selected)[:, None] & (token < n_vocab), [WIDTH])
    token = tl.reshape(token, [WIDTH])
    x = tl.load(source.logits + token, mask=inside, other=float("-inf")).to(tl.float32)
    z = canonical(x, infinite, True)
    if SPARSE:
        z = tl.where(bit_of(source.words, token, inside), z, float("-inf"))
        tiled = (n_selected + STEP - 1) // STEP * STEP
        at = (first - tiled) * TILE + tl.arange(0, WIDTH)
        own = (at >= 0) & (at < H)
        z = tl.where(own, tl.load(source.table_logits + at, mask=own, other=float("-inf")), z)
        token = tl.where(own, tl.load(source.table_ids + at, mask=own, other=0), token)
    return z, token


@triton.jit
def gather(
    source, n_selected, n_vocab, infinite, floor, out, capacity, SPARSE: tl.constexpr,
    H: tl.constexpr,
):  # fmt: skip
    """Lists the keys of candidates of at least ``floor``, as far as they fit; returns their count."""
    count = tl.zeros([], tl.int32)
    tl.debug_barrier()
    for first in range(0, steps_of(n_selected, SPARSE, H), STEP):
        z, token = block_of(source, first, n_selected, n_vocab, infinite, SPARSE, H)
        keys = order_key(z, token)
        keep = (z > float("-inf")) & (keys >= floor)
        place = count + tl.cumsum(keep.to(tl.int32), axis=0) - 1
        tl.store(out + place, keys, mask=keep & (place < capacity))
        count += tl.sum(keep.to(tl.int32), axis=0)
    tl.debug_barrier()
    return count


@triton.jit
def bisected(found, i, unit, one, two, three, wanted):
    """Two more bits of the largest key at which the sum still reaches what is wanted."""
    found = tl.where(one >= wanted, found + unit, found)
    found = tl.where(two >= wanted, found + unit, found)
    found = tl.where(three >= wanted, found + unit, found)
    # Below the 32 bits of the logit come 12 that all keys have.
    return tl.where(i == 15, found | 0xFFF00000, found)


@triton.jit
def unit_of(i):
    """The lower of the two bits that step ``i`` finds: 16 steps for the logit, 10 for the id."""
    return tl.full([], 1, tl.int64) << tl.where(i < 16, 62 - 2 * i, 50 - 2 * i).to(tl.int64)


@triton.jit
def nth_key(keys, n):
    """The n-th largest key of a block; three counts in one sum."""
    found = tl.full([], NOTHING, tl.int64)
    for i in range(26):
        unit = unit_of(i)
        counts = (
            (keys >= found + unit).to(tl.int64)
            + ((keys >= found + unit + unit).to(tl.int64) << 20)
            + ((keys >= found + unit + unit + unit).to(tl.int64) << 40)
        )
        counts = tl.sum(counts, axis=0)
        found = bisected(
            found, i, unit, counts & 0xFFFFF, (counts >> 20) & 0xFFFFF, counts >> 40, n
        )
    return found


@triton.jit
def last_key(
    source, n_selected, n_vocab, infinite, top, c, wanted, BY_MASS: tl.constexpr, SPARSE: tl.constexpr,
    H: tl.constexpr,
):  # fmt: skip
    """The key at which the candidates in order reach ``wanted``, a count or a mass; before all if never."""
    found = tl.full([], NOTHING, tl.int64)
    for i in range(26):
        unit = unit_of(i)
        one = tl.zeros([WIDTH], tl.int64)
        two = tl.zeros([WIDTH], tl.int64)
        three = tl.zeros([WIDTH], tl.int64)
        for first in range(0, steps_of(n_selected, SPARSE, H), STEP):
            z, token = block_of(source, first, n_selected, n_vocab, infinite, SPARSE, H)
            keys = order_key(z, token)
            if BY_MASS:
                w = logit_weight(z, top, c)
            else:
                w = tl.full([WIDTH], 1, tl.int64)
            w = tl.where(z > float("-inf"), w, 0)
            one += tl.where(keys >= found + unit, w, 0)
            two += tl.where(keys >= found + unit + unit, w, 0)
            three += tl.where(keys >= found + unit + unit + unit, w, 0)
        one, two, three = tl.sum(one, axis=0), tl.sum(two, axis=0), tl.sum(three, axis=0)
        found = bisected(found, i, unit, one, two, three, wanted)
    return found


@triton.jit
def prefix_of(
    source, n_selected, n_vocab, infinite, top, c, last, SPARSE: tl.constexpr, H: tl.constexpr
):
    """Mass and number of the candidates at or before a key."""
    mass = tl.zeros([WIDTH], tl.int64)
    count = tl.zeros([WIDTH], tl.int64)
    for first in range(0, steps_of(n_selected, SPARSE, H), STEP):
        z, token = block_of(source, first, n_selected, n_vocab, infinite, SPARSE, H)
        keep = (z > float("-inf")) & (order_key(z, token) >= last)
        mass += tl.where(keep, logit_weight(z, top, c), 0)
        count += keep.to(tl.int64)
    return tl.sum(mass, axis=0), tl.sum(count, axis=0)


@triton.jit
def table_mass(source, top, c, H: tl.constexpr):
    """The mass of the table."""
    mass = tl.zeros([WIDTH], tl.int64)
    for first in range(0, H, WIDTH):
        at = first + tl.arange(0, WIDTH)
        z = tl.load(source.table_logits + at, mask=at < H, other=float("-inf"))
        mass += tl.where(z > float("-inf"), logit_weight(z, top, c), 0)
    return tl.sum(mass, axis=0)


@triton.jit
def group_masses(
    logits, wanted, work, sizes, SPARSE: tl.constexpr, BLOCK_T: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """The mass of each STEP tiles, without the table's tokens, in rows that have a scale."""
    row = tl.program_id(0).to(tl.int64)
    n_vocab, n_tiles, n_groups = sizes.n_vocab, sizes.n_tiles, sizes.n_groups
    words = work.words + row * sizes.n_words
    c = tl.load(wanted.scale + row)
    if c > 0:
        _, top, infinite, dead = row_state(work, row, n_tiles, SPARSE, BLOCK_T)
        tiles = tl.program_id(1) * TILES + tl.arange(0, TILES)
        own = tl.load(
            work.maxima + row * n_tiles + tiles, mask=tiles < n_tiles, other=float("-inf")
        )
        groups = tl.program_id(1) * (TILES // STEP) + tl.arange(0, TILES // STEP)
        # Where the largest weight is 0, nothing is read again.
        near = ((own - top) * c >= -43.0) & (tiles < n_tiles) & (dead == 0)
        sums = tl.zeros([TILES // STEP], tl.int64)
        if infinite & (dead == 0):  # rare, so group by group; the candidates are those at +inf
            each = logit_weight(tl.zeros([], tl.float32), top, c)  # their logits count as 0
            begin = tl.program_id(1) * (TILES // STEP)
            for group in range(begin, tl.minimum(begin + TILES // STEP, n_groups)):
                ids = group * WIDTH + tl.arange(0, WIDTH)
                inside = ids < n_vocab
                x = tl.load(logits.data + row * logits.stride + ids, mask=inside, other=0.0).to(
                    tl.float32
                )
                found = x == float("inf")
                if SPARSE:
                    found = found & bit_of(words, ids, inside)
                sums = tl.where(groups == group, tl.sum(found.to(tl.int64), axis=0) * each, sums)
        elif tl.max(near.to(tl.int32), axis=0) > 0:
            ids = groups[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
            x = tl.load(
                logits.data + row * logits.stride + ids, mask=ids < n_vocab, other=float("-inf")
            ).to(tl.float32)
            # Masked tokens and NaN weigh 0 without being canonical.
            w = logit_weight(x, top, c)
            if SPARSE:
                w = tl.where(bit_of(words, ids, ids < n_vocab), w, 0)
            sums = tl.sum(w, axis=1)
        tl.store(work.masses + row * n_groups + groups, sums, mask=groups < n_groups)


@triton.jit
def first_keys(
    source, delegates, n, n_tiles, n_vocab, infinite, top, buffer, paths, SPARSE: tl.constexpr,
    H: tl.constexpr, SIZE: tl.constexpr, CAP: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """The keys of a row's first candidates, in order: at least ``n`` if there are so many; and their count."""
    t = tl.arange(0, BLOCK_T)
    n += tl.zeros([], tl.int32)  # Triton makes a constant of an argument that is 1
    least = tl.full([], float("-inf"), tl.float32)
    if n <= n_tiles:
        least = kth_delegate(delegates, t, n_tiles, n)
    n_selected = choose_tiles(delegates, t, n_tiles, least, tl.minimum(n, n_tiles), source.tiles)
    floor = ordered(least).to(tl.int64) << 32
    count = gather(source, n_selected, n_vocab, infinite, floor, buffer, CAP, SPARSE, H)
    tl.atomic_add(paths + AT_TILES, n_selected)
    if count > CAP:  # ties, or large logits side by side
        floor = last_key(
            source, n_selected, n_vocab, infinite, top, 1.0, n.to(tl.int64), False, SPARSE, H
        )
        count = gather(source, n_selected, n_vocab, infinite, floor, buffer, CAP, SPARSE, H)
        tl.atomic_add(paths + AT_TILES, 27 * n_selected)
    if count > SIZE:
        at = tl.arange(0, CAP)
        keys = tl.load(buffer + at, mask=at < count, other=NOTHING)
        keep = keys >= nth_key(keys, n)
        tl.debug_barrier()
        place = tl.cumsum(keep.to(tl.int32), axis=0) - 1
        tl.store(buffer + place, keys, mask=keep)
        tl.debug_barrier()
        count = n
    at = tl.arange(0, SIZE)
    keys = sort_descending(tl.load(buffer + at, mask=at < count, other=NOTHING), SIZE)
    return keys, count


@triton.jit
def choose(
    logits, wanted, work, places, history, tokens, sizes, KINDS: tl.constexpr, SPARSE: tl.constexpr,
    H: tl.constexpr, BIASES: tl.constexpr, SIZE: tl.constexpr, CAP: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_G: tl.constexpr, REPORT: tl.constexpr,
):  # fmt: skip
    """One row: its first candidates, and what its samplers make of them.

    REPORT: ``listed`` gets the keys that are left and their weights, in SIZE columns each.
    """
    row = tl.program_id(0).to(tl.int64)
    n_vocab, n_tiles, n_groups = sizes.n_vocab, sizes.n_tiles, sizes.n_groups
    want = tl.load(wanted.path + row)
    n = tl.load(wanted.size + row)
    delegates, top, infinite, dead = row_state(work, row, n_tiles, SPARSE, BLOCK_T)
    if (top == float("-inf")) | (want == AT_TORCH):
        tl.store(tokens + row, -1)
        tl.atomic_add(work.paths + tl.where(want == AT_TORCH, AT_TORCH, AT_REFUSED), 1)
        if REPORT:
            column = row * 2 * SIZE + tl.arange(0, SIZE)
            tl.store(work.listed + column, tl.full([SIZE], NOTHING, tl.int64))
            tl.store(work.listed + column + SIZE, tl.zeros([SIZE], tl.int64))
    else:
        source = source_of(logits, work, row, sizes, H)
        shown = tl.where(dead, 0, n_vocab)
        keys, count = first_keys(
            source, delegates, n, n_tiles, shown, infinite, top, work.buffers + row * CAP, work.paths,
            SPARSE, H, SIZE, CAP, BLOCK_T,
        )  # fmt: skip
        at = tl.arange(0, SIZE)
        tl.store(work.firsts + row, tl.max(keys, axis=0))
        alive = (at < n) & (keys > NOTHING)
        outside = (count >= n) & (n < n_vocab)
        c = tl.load(wanted.scale + row)
        total = tl.zeros([], tl.int64)
        if c > 0:
            g = tl.arange(0, BLOCK_G)
            each = tl.load(work.masses + row * n_groups + g, mask=g < n_groups, other=0)
            total = tl.sum(each, axis=0)
            if SPARSE:
                total += table_mass(source, top, c, H)
        start = tl.load(wanted.start + row)
        position = tl.load(history.position + row)
        length = tl.load(history.length + row)
        temperature = tl.full([], 1, tl.float64)
        full = tl.zeros([], tl.int64)
        token = tl.full([], -1, tl.int64)
        enough = n > 0
        for i in tl.static_range(len(KINDS)):
            place = places[i]
            active = tl.load(place.active + row) != 0
            if KINDS[i] == TEMPERATURE:
                factor = tl.load(place.low + row)
                if tl.load(place.dynamic + row) != 0:
                    factor = dynamic_temperature(
                        keys, alive, temperature, factor, tl.load(place.high + row),
                        tl.load(place.exponent + row),
                    )  # fmt: skip
                outside = outside & (temperature * factor > 1e-5)  # cold: the first is enough
                alive, temperature, full = heat(keys, alive, temperature, full, factor)
            elif KINDS[i] == TOP_K:
                k = tl.load(place.k + row)
                cut = alive & (rank_below(alive, k))
                alive = tl.where(active, cut, alive)
                enough = enough & ((active == 0) | (outside == 0) | (k <= n))
                outside = outside & (active == 0)
            elif KINDS[i] == SOFTMAX:
                own = tl.sum(weights_of(keys, alive, temperature), axis=0)
                full = tl.where(active, tl.where(outside, total, own), full)
            elif KINDS[i] == TOP_P:
                if active:
                    alive, told = top_p(place, row, keys, alive, temperature, full, outside, total)
                    enough = enough & told
                    outside = outside & (outside == 0)
            elif KINDS[i] == MIN_P:
                if active:
                    alive, told = min_p(place, row, keys, alive, temperature, outside)
                    enough = enough & told
                    outside = outside & (outside == 0)
            elif KINDS[i] == TYPICAL_P:
                if active:
                    alive = typical_p(place, row, keys, alive, temperature, SIZE)
            elif KINDS[i] == TOP_N_SIGMA:
                if active:
                    alive = top_n_sigma(place, row, keys, alive)
            elif KINDS[i] == XTC:
                if active:
                    alive = xtc(place, row, keys, alive, temperature, position)
            elif KINDS[i] == LOGIT_BIAS:
                if active & (i >= start):
                    keys, alive = late_bias(place, row, keys, alive, temperature, BIASES, SIZE)
                    temperature, full = temperature * 0.0 + 1.0, full * 0
            elif KINDS[i] == PENALTIES:
                if active & (i >= start) & (tl.minimum(tl.load(place.window + row), length) > 0):
                    keys, alive = late_penalties(
                        place, row, keys, alive, temperature, history, length, sizes.max_tokens, SIZE,
                    )  # fmt: skip
                    temperature, full = temperature * 0.0 + 1.0, full * 0
            elif KINDS[i] == TOKEN_MASK:
                if active & (i >= start):
                    alive = token_mask(place, row, keys, alive, sizes.n_words)
            elif KINDS[i] == GREEDY:
                token = tl.where(active, first_id(keys, alive), token)
            elif KINDS[i] == DIST:
                if active:
                    w = weights_of(keys, alive, temperature)
                    token = draw(keys, w, uniform(place, row, position))
                    enough = enough & (outside == 0)
            elif KINDS[i] == GUMBEL:
                if active:
                    w = weights_of(keys, alive, temperature)
                    token = race(
                        keys, w, tl.load(place.seed + row), position, tl.load(place.stream + row)
                    )
            elif KINDS[i] == MIROSTAT_V2:
                if active:
                    alive, token = mirostat_v2(
                        place, row, keys, alive, temperature, position, sizes.max_tokens + 1
                    )
        token = tl.where(size_of(alive) > 0, token, -1)
        tl.store(tokens + row, tl.where(enough, token, UNDECIDED))
        tl.atomic_add(work.paths + tl.where(enough, want, AT_WHOLE), 1)
        if REPORT:
            tl.store(work.listed + row * 2 * SIZE + at, tl.where(alive, keys, NOTHING))
            w = weights_of(keys, alive, temperature)
            tl.store(work.listed + row * 2 * SIZE + SIZE + at, w)


@triton.jit
def rank_below(alive, k):
    """The first k candidates."""
    one = alive.to(tl.int64)
    return tl.cumsum(one, axis=0) <= k


@triton.jit
def whole(
    logits, wanted, work, places, history, tokens, sizes, KINDS: tl.constexpr, SPARSE: tl.constexpr,
    H: tl.constexpr, CAP: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    """One row that its list could not decide: samplers that keep a beginning of the order, and a draw."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(tokens + row) == UNDECIDED:
        n_vocab, n_tiles, n_groups = sizes.n_vocab, sizes.n_tiles, sizes.n_groups
        delegates, top, infinite, dead = row_state(work, row, n_tiles, SPARSE, BLOCK_T)
        t = tl.arange(0, BLOCK_T)
        source = source_of(logits, work, row, sizes, H)
        shown = tl.where(dead, 0, n_vocab)
        n_selected = choose_tiles(
            delegates, t, n_tiles, float("-inf"), n_tiles, source.tiles
        )  # all
        first = tl.load(work.firsts + row)
        last = tl.full([], NOTHING, tl.int64)  # what stands before or at it is left
        temperature = tl.full([], 1, tl.float64)
        full = tl.zeros([], tl.int64)
        token = tl.full([], -1, tl.int64)
        for i in tl.static_range(len(KINDS)):
            place = places[i]
            active = tl.load(place.active + row) != 0
            if KINDS[i] == TEMPERATURE:
                factor = tl.load(place.low + row)
                product = temperature * factor
                cold = product <= 1e-5
                last = tl.where(cold, tl.maximum(last, first), last)
                full = tl.where(factor == 1.0, full, 0)
                temperature = tl.where(cold, tl.full([], 1, tl.float64), product)
            elif KINDS[i] == SOFTMAX:
                if active:
                    full, _ = prefix_of(
                        source, n_selected, shown, infinite, top, scale_of(temperature), last,
                        SPARSE, H,
                    )  # fmt: skip
            elif KINDS[i] == TOP_K:
                if active:
                    key = last_key(
                        source, n_selected, shown, infinite, top, 1.0, tl.load(place.k + row),
                        False, SPARSE, H,
                    )  # fmt: skip
                    last = tl.maximum(last, key)
            elif KINDS[i] == TOP_P:
                if active:
                    c = scale_of(temperature)
                    mass, _ = prefix_of(
                        source, n_selected, shown, infinite, top, c, last, SPARSE, H
                    )
                    mass = tl.where(tl.load(place.full + row) != 0, full, mass)
                    goal = ceil_fraction(tl.load(place.m + row), tl.load(place.s + row), mass)
                    key = last_key(
                        source, n_selected, shown, infinite, top, c, goal, True, SPARSE, H
                    )
                    key = tl.minimum(key, first)
                    least = tl.load(place.min_keep + row)
                    if least > 1:
                        other = last_key(
                            source, n_selected, shown, infinite, top, 1.0, least, False, SPARSE, H
                        )
                        key = tl.minimum(key, other)
                    last = tl.maximum(last, key)
            elif KINDS[i] == MIN_P:
                if active:
                    bound = (temperature * tl.load(place.log + row)).to(tl.float32)
                    key = tl.maximum(last, least_kept(top, bound, True) << 32)
                    least = tl.load(place.min_keep + row)
                    if least > 1:
                        _, count = prefix_of(
                            source, n_selected, shown, infinite, top, 1.0, key, SPARSE, H
                        )
                        if count < least:
                            key = last_key(
                                source, n_selected, shown, infinite, top, 1.0, least, False,
                                SPARSE, H,
                            )  # fmt: skip
                    last = tl.maximum(last, key)
            elif KINDS[i] == GREEDY:
                token = tl.where(active, key_id(first), token)
            elif KINDS[i] == DIST:
                if active:
                    u = uniform(place, row, tl.load(history.position + row))
                    c = scale_of(temperature)
                    ready = (last == NOTHING) & (c == tl.load(wanted.scale + row))
                    token = draw_whole(
                        source, n_selected, shown, n_groups, infinite, top, c, last, u, ready,
                        work.masses + row * n_groups, work.buffers + row * CAP, SPARSE, H, BLOCK_G,
                    )  # fmt: skip
        tl.store(tokens + row, token)


@triton.jit
def draw_whole(
    source, n_tiles, n_vocab, n_groups, infinite, top, c, last, u, ready, masses, own,
    SPARSE: tl.constexpr, H: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    """The first token in id order whose cumulative weight exceeds floor(u * sum / 2^64).

    ``ready``: all candidates are left, and ``masses`` holds their groups' masses but for the table's.
    """
    g = tl.arange(0, BLOCK_G)
    j = tl.arange(0, WIDTH)
    if ready == 0:
        for first in range(0, n_tiles, STEP):
            z, token = block_of(source, first, n_tiles, n_vocab, infinite, SPARSE, H)
            keep = (z > float("-inf")) & (order_key(z, token) >= last)
            w = tl.where(keep, logit_weight(z, top, c), 0)
            tl.store(masses + first // STEP, tl.sum(w, axis=0))
    tl.store(own + j, tl.zeros([WIDTH], tl.int64))
    tl.debug_barrier()
    if SPARSE:
        for first in range(0, H, WIDTH):
            token, w, keep = table_block(source, first, top, c, last, H)
            tl.atomic_add(masses + token // WIDTH, w, mask=keep)
        tl.debug_barrier()
    each = tl.load(masses + g, mask=g < n_groups, other=0)
    target = tl.umulhi(u, tl.sum(each, axis=0).to(tl.uint64)).to(tl.int64)
    group = tl.min(tl.where(tl.cumsum(each, axis=0) > target, g, BLOCK_G - 1), axis=0)
    rest = target - tl.sum(tl.where(g < group, each, 0), axis=0)
    if SPARSE:
        for first in range(0, H, WIDTH):
            token, w, keep = table_block(source, first, top, c, last, H)
            tl.store(own + token % WIDTH, w, mask=keep & (token // WIDTH == group))
        tl.debug_barrier()
    token = group * WIDTH + j
    x = tl.load(source.logits + token, mask=token < n_vocab, other=float("-inf")).to(tl.float32)
    z = canonical(x, infinite, True)
    if SPARSE:
        z = tl.where(bit_of(source.words, token, token < n_vocab), z, float("-inf"))
    keep = (z > float("-inf")) & (order_key(z, token) >= last)
    w = tl.where(keep, logit_weight(z, top, c), 0) + tl.load(own + j)
    passed = tl.where(tl.cumsum(w, axis=0) > rest, token.to(tl.int64), BEYOND)
    return tl.min(passed, axis=0)


@triton.jit
def table_block(source, first, top, c, last, H: tl.constexpr):
    """Tokens, weights, and which are left, of WIDTH slots of the table."""
    at = first + tl.arange(0, WIDTH)
    token = tl.load(source.table_ids + at, mask=at < H, other=0)
    z = tl.load(source.table_logits + at, mask=at < H, other=float("-inf"))
    keep = (z > float("-inf")) & (order_key(z, token) >= last)
    return token, logit_weight(z, top, c), keep


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
            if KINDS[i] == MIROSTAT_V2:
                if tl.load(place.active + row) != 0:
                    mu = tl.load(place.next_mu + row)
                    tl.store(place.mu + row * (max_tokens + 1) + position + 1, mu)
