"""One row in its tiles: its blocks, what a truncation keeps of it, its mass, and a draw from it.

What top-k, top-p and min-p keep is all that stands at or before one key of the order.  The verbs are those of
docs/numerics.md, "Words"; here each of them returns that key, so that ``keep_through`` is a comparison.
A key is found by bisection over the selected tiles.  Masses are integers: nothing depends on how rows are cut.
"""

from __future__ import annotations

import triton
import triton.language as tl

from aleator.device.backends.triton import lists, numerics
from aleator.device.backends.triton.layout import Source
from aleator.device.backends.triton.sparse import bit_of
from aleator.device.backends.triton.tiles import LEAST, STEP, TILE, WIDTH, list_tiles, nth_delegate

LOGITS, PADDED, PROBABILITIES = (tl.constexpr(i) for i in range(3))
"""What a row holds: logits; logits of which masked ones stand last in the order; probabilities."""

GATHERED = tl.constexpr(32)  # tiles that make a list at once: each step waits for the one before
VALUE_STEPS = tl.constexpr(16)  # of a bisection: two bits of a key's value each
KEY_STEPS = tl.constexpr(27)  # the same, then the bits of its token


@triton.jit
def source_of(logits, work, row, sizes, top, infinite, dead, H: tl.constexpr):
    """A chain's row; ``dead``: no token outside the table is a candidate."""
    return Source(
        logits.data + row * logits.stride,
        work.words + row * sizes.n_words,
        work.tiles + row * sizes.n_tiles,
        work.table_ids + row * H,
        work.table_logits + row * H,
        tl.where(dead, 0, sizes.n_vocab),
        top,
        infinite,
    )


@triton.jit
def plain_source(logits, tiles, n_vocab, top, infinite):
    """A row without table and bits."""
    return Source(logits, tiles, tiles, tiles, logits, n_vocab, top, infinite)


@triton.jit
def delegates_of(maxima, n_tiles, BLOCK_T: tl.constexpr):
    """Canonical delegates of a row, its largest value, and whether it holds a +inf.

    Of probabilities: values outside [0, 1], and then the largest is 0.
    """
    t = tl.arange(0, BLOCK_T)
    delegates = tl.load(maxima + t, mask=t < n_tiles, other=float("-inf"))
    top = tl.max(delegates, axis=0)
    infinite = top == float("inf")
    return at_infinity(delegates, infinite), tl.where(infinite, 0.0, top), infinite


@triton.jit
def at_infinity(delegates, infinite):
    """Canonical delegates: with a +inf, 0 where it is and -inf elsewhere."""
    shown = tl.where(delegates == float("inf"), 0.0, float("-inf"))
    return tl.where(infinite, shown, delegates)


@triton.jit
def measure(z, top, c, KIND: tl.constexpr):
    """Q40 weights of canonical values; ``c`` is the scale of logits."""
    if KIND == PROBABILITIES:
        return numerics.probability_weight(z)
    else:
        return numerics.logit_weight(z, top, c)


@triton.jit
def steps_of(n_selected, H: tl.constexpr, TILES: tl.constexpr = STEP):
    """The end of a loop over blocks in steps of TILES: the selected tiles, then the table."""
    end = (n_selected + TILES - 1) // TILES * TILES
    if H > 0:
        end += (H + TILES * TILE - 1) // (TILES * TILE) * TILES
    return end


@triton.jit
def block_of(
    source, first, n_selected, KIND: tl.constexpr, H: tl.constexpr, TILES: tl.constexpr = STEP
):
    """Canonical values and tokens of a block, in order of id but for the table; and which are there.

    ``H``: slots of the table, 0 without one.  ``TILES``: how many tiles a block has.
    """
    slot = first + tl.arange(0, TILES)
    tile = tl.load(source.tiles + slot, mask=slot < n_selected, other=0)
    token = tile[:, None] * TILE + tl.arange(0, TILE)[None, :]
    there = (slot < n_selected)[:, None] & (token < source.n_vocab)
    there = tl.reshape(there, [TILES * TILE])
    token = tl.reshape(token, [TILES * TILE])
    x = tl.load(source.logits + token, mask=there, other=float("-inf")).to(tl.float32)
    z = numerics.canonical(x, source.infinite, KIND != PROBABILITIES)
    if H > 0:
        z = tl.where(bit_of(source.words, token, there), z, float("-inf"))
        tiled = (n_selected + TILES - 1) // TILES * TILES
        at = (first - tiled) * TILE + tl.arange(0, TILES * TILE)
        own = (at >= 0) & (at < H)
        z = tl.where(own, tl.load(source.table_logits + at, mask=own, other=float("-inf")), z)
        token = tl.where(own, tl.load(source.table_ids + at, mask=own, other=0), token)
    if KIND == LOGITS:
        there = z > float("-inf")
    return z, token, there


@triton.jit
def gather(
    source, n_selected, floor, out, capacity, KIND: tl.constexpr, H: tl.constexpr,
    TILES: tl.constexpr = STEP,
):  # fmt: skip
    """Lists the keys of at least ``floor``, as far as they fit, by block; returns their count."""
    count = tl.zeros([], tl.int32)
    tl.debug_barrier()
    for first in range(0, steps_of(n_selected, H, TILES), TILES):
        z, token, there = block_of(source, first, n_selected, KIND, H, TILES)
        keys = numerics.order_key(z, token)
        keep = there & (keys >= floor)
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
    # Below the 32 bits of the value come 10 that all keys have: ids are below 2^22.
    return tl.where(i == 15, found | 0xFFC00000, found)


@triton.jit
def unit_of(i):
    """The lower of the two bits that step ``i`` finds: 16 steps for the value, 11 for the id."""
    return tl.full([], 1, tl.int64) << tl.where(i < 16, 62 - 2 * i, 52 - 2 * i).to(tl.int64)


@triton.jit
def nth_key(keys, n):
    """A key that ``n`` keys of a block reach, and no more; three counts in one sum."""
    found = tl.full([], numerics.NOTHING, tl.int64)
    reached = tl.zeros([], tl.int64)  # how many there are at or above ``found``
    i = tl.zeros([], tl.int32)
    while (i < KEY_STEPS) & (reached != n):
        unit = unit_of(i)
        counts = (
            (keys >= found + unit).to(tl.int64)
            + ((keys >= found + unit + unit).to(tl.int64) << 20)
            + ((keys >= found + unit + unit + unit).to(tl.int64) << 40)
        )
        counts = tl.sum(counts, axis=0)
        one, two, three = counts & 0xFFFFF, (counts >> 20) & 0xFFFFF, counts >> 40
        found = bisected(found, i, unit, one, two, three, n)
        reached = tl.where(one >= n, one, reached)
        reached = tl.where(two >= n, two, reached)
        reached = tl.where(three >= n, three, reached)
        i += 1
    return found


@triton.jit
def _reached(
    source, n_selected, c, wanted, BY_MASS: tl.constexpr, KIND: tl.constexpr, H: tl.constexpr
):
    """The key at which the order reaches ``wanted``, a count or a mass; before all keys if it never does.

    Bisection finds the value.  Tiles are in the order of tokens, so one more pass finds the token among those
    of equal value; a table is not, so with one the bisection goes on.
    """
    found = tl.full([], numerics.NOTHING, tl.int64)
    above = tl.zeros([], tl.int64)  # of what stands before all keys of the value found
    for i in range(VALUE_STEPS if H == 0 else KEY_STEPS):
        unit = unit_of(i)
        one = tl.zeros([WIDTH], tl.int64)
        two = tl.zeros([WIDTH], tl.int64)
        three = tl.zeros([WIDTH], tl.int64)
        for first in range(0, steps_of(n_selected, H), STEP):
            z, token, there = block_of(source, first, n_selected, KIND, H)
            keys = numerics.order_key(z, token)
            w = _counted(z, there, source.top, c, BY_MASS, KIND)
            one += tl.where(keys >= found + unit, w, 0)
            two += tl.where(keys >= found + unit + unit, w, 0)
            three += tl.where(keys >= found + unit + unit + unit, w, 0)
        one, two, three = tl.sum(one, axis=0), tl.sum(two, axis=0), tl.sum(three, axis=0)
        found = bisected(found, i, unit, one, two, three, wanted)
        above = tl.where(three < wanted, three, above)
        above = tl.where(two < wanted, two, above)
        above = tl.where(one < wanted, one, above)
    if H == 0:
        value = (found >> 32).to(tl.int32)
        best = tl.full([], 0x7FFFFFFF, tl.int32)
        for first in range(0, steps_of(n_selected, H), STEP):
            z, token, there = block_of(source, first, n_selected, KIND, H)
            w = _counted(z, there & (numerics.ordered(z) == value), source.top, c, BY_MASS, KIND)
            ends = (w > 0) & (above + tl.cumsum(w, axis=0) >= wanted)
            best = tl.minimum(best, tl.min(tl.where(ends, token, 0x7FFFFFFF), axis=0))
            above += tl.sum(w, axis=0)
        key = (value.to(tl.int64) << 32) | (0xFFFFFFFF - best.to(tl.int64))
        found = tl.where(value == -2147483648, numerics.NOTHING, key)
    return found


@triton.jit
def _counted(z, there, top, c, BY_MASS: tl.constexpr, KIND: tl.constexpr):
    """What each candidate adds to a sum that is bisected: its weight, or 1."""
    if BY_MASS:
        return tl.where(there, measure(z, top, c, KIND), 0)
    else:
        return there.to(tl.int64)


@triton.jit
def keep_first(source, n_selected, n, KIND: tl.constexpr, H: tl.constexpr):
    """The last key of the first ``n``, int64; before all keys if there are fewer."""
    return _reached(source, n_selected, 1.0, n, False, KIND, H)


@triton.jit
def keep_mass(source, n_selected, c, wanted, KIND: tl.constexpr, H: tl.constexpr):
    """The last key of the shortest prefix of this mass, above 0; before all keys if they have less."""
    return _reached(source, n_selected, c, wanted, True, KIND, H)


@triton.jit
def keep_near(top, bound, KIND: tl.constexpr):
    """A key at or before which all values within ``bound`` of the largest stand, or of at least ``bound``."""
    return numerics.least_kept(top, bound, KIND != PROBABILITIES) << 32


@triton.jit
def keep_through(source, n_selected, c, last, KIND: tl.constexpr, H: tl.constexpr):
    """Mass and number of what stands at or before a key."""
    mass = tl.zeros([WIDTH], tl.int64)
    count = tl.zeros([WIDTH], tl.int64)
    for first in range(0, steps_of(n_selected, H), STEP):
        z, token, there = block_of(source, first, n_selected, KIND, H)
        keep = there & (numerics.order_key(z, token) >= last)
        mass += tl.where(keep, measure(z, source.top, c, KIND), 0)
        count += keep.to(tl.int64)
    return tl.sum(mass, axis=0), tl.sum(count, axis=0)


@triton.jit
def tiles_of_first(source, delegates, n, quota, n_tiles, BLOCK_T: tl.constexpr):
    """Selects the tiles that hold the first ``n``; their number, and a key that no more than these have.

    All tiles if ``n`` is more than there are.  Of those whose delegates are the n-th, only so many as ``quota``
    leaves.
    """
    order, inside = numerics.ordered(delegates), tl.arange(0, BLOCK_T) < n_tiles
    least, n_selected, room = tl.full([], LEAST, tl.int32), quota, quota
    if n == 1:
        least = tl.max(order, axis=0)
        equal = (order == least) & inside
        n_selected = tl.minimum(tl.sum(equal.to(tl.int32), axis=0), quota)
    elif n <= n_tiles:
        least, reached, beyond = nth_delegate(order, n_tiles, n, source.top)
        quota = tl.maximum(quota, tl.where(reached <= n + n // 16, reached, 0))
        n_selected, room = tl.minimum(reached, quota), quota - beyond
    list_tiles(order, n_tiles, least, room, source.tiles, BLOCK_T)
    return n_selected, least.to(tl.int64) << 32


@triton.jit
def first_keys(
    source, delegates, n, n_tiles, buffer, paths, tiles_read: tl.constexpr, H: tl.constexpr,
    SIZE: tl.constexpr, CAP: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """The keys of a row's first candidates, in order: at least ``n`` if there are so many; and their count."""
    n += tl.zeros([], tl.int32)  # Triton makes a constant of an argument that is 1
    quota = tl.minimum(n, n_tiles)
    n_selected, floor = tiles_of_first(source, delegates, n, quota, n_tiles, BLOCK_T)
    # Few for a few: what is not there takes time too.
    at_once: tl.constexpr = SIZE // 2 if SIZE < 2 * GATHERED else GATHERED
    count = gather(source, n_selected, floor, buffer, CAP, LOGITS, H, at_once)
    tl.atomic_add(paths + tiles_read, n_selected)
    if count > CAP:  # ties, or large logits side by side
        floor = keep_first(source, n_selected, n.to(tl.int64), LOGITS, H)
        count = gather(source, n_selected, floor, buffer, CAP, LOGITS, H, at_once)
        tl.atomic_add(
            paths + tiles_read, n_selected * (VALUE_STEPS + 2 if H == 0 else KEY_STEPS + 1)
        )
    if count > SIZE:
        at = tl.arange(0, CAP)
        keys = tl.load(buffer + at, mask=at < count, other=numerics.NOTHING)
        keep = keys >= nth_key(keys, n)
        tl.debug_barrier()
        place = tl.cumsum(keep.to(tl.int32), axis=0) - 1
        tl.store(buffer + place, keys, mask=keep)
        tl.debug_barrier()
        count = n
    return lists.in_order(buffer, count, SIZE), count


@triton.jit
def store_masses(
    source, maxima, masses, c, n_tiles, n_groups, KIND: tl.constexpr, H: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    """The masses of this program's groups of STEP tiles, TILES in all, without the table's tokens."""
    tiles = tl.program_id(1) * TILES + tl.arange(0, TILES)
    own = tl.load(maxima + tiles, mask=tiles < n_tiles, other=float("-inf"))
    groups = tl.program_id(1) * (TILES // STEP) + tl.arange(0, TILES // STEP)
    # Where the largest weight is 0, nothing is read again.
    near = ((own - source.top) * c >= -43.0) & (tiles < n_tiles) & (source.n_vocab > 0)
    sums = tl.zeros([TILES // STEP], tl.int64)
    if source.infinite & (source.n_vocab > 0):
        # Rare, so group by group; the candidates are those at +inf, and their logits count as 0.
        each = measure(tl.zeros([], tl.float32), source.top, c, KIND)
        begin = tl.program_id(1) * (TILES // STEP)
        for group in range(begin, tl.minimum(begin + TILES // STEP, n_groups)):
            ids = group * WIDTH + tl.arange(0, WIDTH)
            inside = ids < source.n_vocab
            x = tl.load(source.logits + ids, mask=inside, other=0.0).to(tl.float32)
            found = x == float("inf")
            if H > 0:
                found = found & bit_of(source.words, ids, inside)
            sums = tl.where(groups == group, tl.sum(found.to(tl.int64), axis=0) * each, sums)
    elif tl.max(near.to(tl.int32), axis=0) > 0:
        ids = groups[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
        inside = ids < source.n_vocab
        x = tl.load(source.logits + ids, mask=inside, other=float("-inf")).to(tl.float32)
        # Masked tokens and NaN weigh 0 without being canonical.
        w = measure(x, source.top, c, KIND)
        if H > 0:
            w = tl.where(bit_of(source.words, ids, inside), w, 0)
        sums = tl.sum(w, axis=1)
    tl.store(masses + groups, sums, mask=groups < n_groups)


@triton.jit
def mass_of(masses, n_groups, BLOCK_G: tl.constexpr):
    """The sum of a row's masses."""
    g = tl.arange(0, BLOCK_G)
    return tl.sum(tl.load(masses + g, mask=g < n_groups, other=0), axis=0)


@triton.jit
def draw(
    source, n_selected, c, last, u, ready, masses, own, KIND: tl.constexpr, H: tl.constexpr,
    BLOCK_G: tl.constexpr,
):  # fmt: skip
    """The first token in id order whose cumulative weight exceeds floor(u * sum / 2^64); BEYOND if all weigh 0.

    Drawn from what stands at or before the key ``last`` in the selected tiles; with a table those are all
    tiles.  ``ready``: ``masses`` holds their groups' masses but for the table's.  ``own``: WIDTH int64.
    """
    g = tl.arange(0, BLOCK_G)
    j = tl.arange(0, WIDTH)
    n_groups = (n_selected + STEP - 1) // STEP
    if ready == 0:
        for first in range(0, n_selected, STEP):
            z, token, there = block_of(source, first, n_selected, KIND, H)
            keep = there & (numerics.order_key(z, token) >= last)
            w = tl.where(keep, measure(z, source.top, c, KIND), 0)
            tl.store(masses + first // STEP, tl.sum(w, axis=0))
    if H > 0:
        tl.store(own + j, tl.zeros([WIDTH], tl.int64))
    tl.debug_barrier()
    if H > 0:
        for first in range(0, H, WIDTH):
            token, w, keep = table_block(source, first, c, last, H)
            tl.atomic_add(masses + token // WIDTH, w, mask=keep)
        tl.debug_barrier()
    each = tl.load(masses + g, mask=g < n_groups, other=0)
    target = tl.umulhi(u, tl.sum(each, axis=0).to(tl.uint64)).to(tl.int64)
    group = tl.min(tl.where(tl.cumsum(each, axis=0) > target, g, BLOCK_G - 1), axis=0)
    rest = target - tl.sum(tl.where(g < group, each, 0), axis=0)
    z, token, there = block_of(source, group * STEP, n_selected, KIND, H)
    keep = there & (numerics.order_key(z, token) >= last)
    w = tl.where(keep, measure(z, source.top, c, KIND), 0)
    if H > 0:
        for first in range(0, H, WIDTH):
            written, mass, kept = table_block(source, first, c, last, H)
            tl.store(own + written % WIDTH, mass, mask=kept & (written // WIDTH == group))
        tl.debug_barrier()
        w += tl.load(own + j)
    passed = (tl.cumsum(w, axis=0) > rest) & (w > 0)  # slots without a tile look like tile 0
    passed = tl.where(passed, token.to(tl.int64), numerics.BEYOND)
    return tl.min(passed, axis=0)


@triton.jit
def table_block(source, first, c, last, H: tl.constexpr):
    """Tokens, weights, and which are left, of WIDTH slots of the table."""
    at = first + tl.arange(0, WIDTH)
    token = tl.load(source.table_ids + at, mask=at < H, other=0)
    z = tl.load(source.table_logits + at, mask=at < H, other=float("-inf"))
    keep = (z > float("-inf")) & (numerics.order_key(z, token) >= last)
    return token, numerics.logit_weight(z, source.top, c), keep


@triton.jit
def table_mass(source, c, H: tl.constexpr):
    """The mass of the table."""
    mass = tl.zeros([WIDTH], tl.int64)
    for first in range(0, H, WIDTH):
        _, w, keep = table_block(source, first, c, numerics.NOTHING, H)
        mass += tl.where(keep, w, 0)
    return tl.sum(mass, axis=0)
