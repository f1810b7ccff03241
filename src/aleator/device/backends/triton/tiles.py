"""Rows cut in tiles of 128 tokens, and their delegates: the largest logit of each tile.

One sweep reads the logits and keeps the delegates; the k largest logits then lie in the k tiles with the
largest delegates, so that what follows looks at few tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

from aleator.device.backends.triton.numerics import ordered

TILE = tl.constexpr(128)
STEP = tl.constexpr(8)  # tiles that a program looks at together
WIDTH = tl.constexpr(1024)  # STEP * TILE
LEAST = tl.constexpr(-2139095041)  # what -inf is in ``ordered``


def block_of(n: int) -> int:
    """Elements of a block that holds n."""
    return max(16, int(triton.next_power_of_2(n)))


@triton.jit
def tile_maxima(
    logits, stride, maxima, n_vocab, n_tiles, LOGITS: tl.constexpr, TILES: tl.constexpr
):
    """Delegates; with probabilities, +inf for a tile that holds a value outside [0, 1]."""
    row = tl.program_id(0).to(tl.int64)
    tiles = tl.program_id(1) * TILES + tl.arange(0, TILES)
    ids = tiles[:, None] * TILE + tl.arange(0, TILE)[None, :]
    x = tl.load(
        logits + row * stride + ids, mask=ids < n_vocab, other=float("-inf") if LOGITS else 0.0
    )
    best = tl.max(x, axis=1).to(tl.float32)
    if LOGITS:
        best = tl.where(best == best, best, float("-inf")) + 0.0
    else:
        least = tl.min(x, axis=1).to(tl.float32)
        best = tl.where(
            (least < 0.0) | (best > 1.0), float("inf"), tl.where(best == best, best, 0.0)
        )
    tl.store(maxima + row * n_tiles + tiles, best, mask=tiles < n_tiles)


@triton.jit
def list_tiles(order, n_tiles, least, room, tiles, BLOCK_T: tl.constexpr):
    """Lists the tiles above ``least`` and the first ``room`` at it; delegates are given by :func:`ordered`."""
    t = tl.arange(0, BLOCK_T)
    above = (order > least) & (t < n_tiles)
    equal = (order == least) & (t < n_tiles)
    # Both numbers in one sum: a row has at most 2^13 tiles.
    so_far = tl.cumsum(above.to(tl.int32) + (equal.to(tl.int32) << 16), axis=0)
    n_equal = so_far >> 16
    place = (so_far & 0xFFFF) + tl.minimum(n_equal, room) - 1
    tl.debug_barrier()
    tl.store(tiles + place, t, mask=above | (equal & (n_equal <= room)))
    tl.debug_barrier()


@triton.jit
def choose_tiles(delegates, n_tiles, least, tiles, BLOCK_T: tl.constexpr):
    """Lists the tiles whose delegates are ``least`` or more; returns their count."""
    order, bound = ordered(delegates), ordered(tl.zeros([], tl.float32) + least)
    list_tiles(order, n_tiles, bound, n_tiles, tiles, BLOCK_T)
    inside = (order >= bound) & (tl.arange(0, BLOCK_T) < n_tiles)
    return tl.sum(inside.to(tl.int32), axis=0)


@triton.jit
def nth_delegate(order, n_tiles, n, top):
    """What ``n`` delegates reach, and at most a sixteenth more unless they are equal; n <= n_tiles.

    The range from the least to ``top``, which none exceeds, is cut in five until that holds.

    Returns:
        it, as :func:`ordered` gives it; how many reach it; and how many reach something above it that fewer
        than ``n`` reach.
    """
    finite = order > LEAST
    reached = tl.sum(finite.to(tl.int32), axis=0)
    least = tl.min(tl.where(finite, order, 0x7FFFFFFF), axis=0)
    enough = reached >= n
    beyond = tl.where(enough, 0, reached)
    low = tl.where(enough, least, LEAST).to(tl.int64)
    high = tl.where(enough, ordered(top), LEAST).to(tl.int64) + 1
    reached = tl.where(enough, reached, n_tiles)
    while (high - low > 1) & (reached > n + n // 16):
        unit, begin = tl.maximum((high - low) // 5, 1), low
        counts = tl.zeros_like(order).to(tl.int64)
        for i in tl.static_range(4):  # four counts in one sum
            counts += (order >= (begin + (i + 1) * unit).to(tl.int32)).to(tl.int64) << (16 * i)
        counts = tl.sum(counts, axis=0)
        for i in tl.static_range(4):
            at, count = begin + (i + 1) * unit, ((counts >> (16 * i)) & 0xFFFF).to(tl.int32)
            below = (count < n) & (at < high)
            high, beyond = tl.where(below, at, high), tl.where(below, count, beyond)
            low = tl.where(count >= n, at, low)
            reached = tl.where(count >= n, count, reached)
    return low.to(tl.int32), reached, beyond
