"""Rows cut in tiles of 128 tokens, and their delegates: the largest logit of each tile.

One sweep reads the logits and keeps the delegates; the k largest logits then lie in the k tiles with the
largest delegates, so that what follows looks at few tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

from aleator.device.backends.triton.numerics import ordered, value_of

TILE = tl.constexpr(128)
STEP = tl.constexpr(8)  # tiles that a program looks at together
WIDTH = tl.constexpr(1024)  # STEP * TILE


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
def choose_tiles(delegates, t, n_tiles, least, quota, tiles):
    """Lists the tiles above ``least`` and the first at it, ``quota`` in all; returns their count."""
    above = (delegates > least) & (t < n_tiles)
    equal = (delegates == least) & (t < n_tiles)
    room = quota - tl.sum(above.to(tl.int32), axis=0)
    chosen = above | (equal & (tl.cumsum(equal.to(tl.int32), axis=0) <= room))
    place = tl.cumsum(chosen.to(tl.int32), axis=0) - 1
    tl.debug_barrier()
    tl.store(tiles + place, t, mask=chosen)
    tl.debug_barrier()
    return tl.sum(chosen.to(tl.int32), axis=0)


@triton.jit
def kth_delegate(delegates, t, n_tiles, k):
    """The k-th largest delegate, k <= n_tiles: two bits of its order at a time, three counts in one sum."""
    order = ordered(delegates).to(tl.int64) + 2147483648
    order = tl.where(t < n_tiles, order, -1)
    found = tl.zeros([], tl.int64)
    reached = tl.zeros([], tl.int64)  # how many there are at or above ``found``
    i = tl.zeros([], tl.int32)
    while (i < 16) & (reached != k):
        unit = tl.full([], 1, tl.int64) << (30 - 2 * i).to(tl.int64)
        counts = (
            (order >= found + unit).to(tl.int64)
            + ((order >= found + 2 * unit).to(tl.int64) << 20)
            + ((order >= found + 3 * unit).to(tl.int64) << 40)
        )
        counts = tl.sum(counts, axis=0)
        one, two, three = counts & 0xFFFFF, (counts >> 20) & 0xFFFFF, counts >> 40
        found += unit * (
            (one >= k).to(tl.int64) + (two >= k).to(tl.int64) + (three >= k).to(tl.int64)
        )
        reached = tl.where(one >= k, one, reached)
        reached = tl.where(two >= k, two, reached)
        reached = tl.where(three >= k, three, reached)
        i += 1
    least = tl.min(tl.where(order >= found, order, 4294967296), axis=0)
    return value_of((least - 2147483648).to(tl.int32))
