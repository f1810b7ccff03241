"""Philox4x32-10 and the keys of random draws (docs/numerics.md, "Random numbers").

Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3": a function from counters to random words.
There is no state, so a draw depends only on its key, not on earlier draws.
"""

from __future__ import annotations

from aleator.core.contract import Purpose

MASK32 = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], key: int) -> tuple[int, int, int, int]:
    """Return four 32-bit words for a counter of four words and a 64-bit key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key & MASK32, key >> 32
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & MASK32, (a >> 32) ^ c3 ^ k1, a & MASK32
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    return c0, c1, c2, c3


def stream(purpose: Purpose, ordinal: int = 0, completion: int = 0) -> int:
    """The 32-bit word that separates streams: purpose, ordinal in the chain, completion index."""
    return purpose << 28 | ordinal << 20 | completion


def uniform64(seed: int, index: int, position: int, stream_word: int) -> int:
    """Return a uniform 64-bit integer: the block's first two words, the low one first."""
    w0, w1, _, _ = philox4x32((index, position & MASK32, position >> 32, stream_word), seed)
    return w0 | w1 << 32
