"""Quantises matrices to ggml's types with codebooks, in NumPy: for tests.

Scales come from the largest magnitude of a group, and entries are the nearest: less careful than llama.cpp,
whose quantisers search, but good enough for random weights.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from aleator import _native

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

AT_ONCE = 2**12
"""Entries that are searched at a time."""


def _book(name: str) -> Floats:
    return np.asarray(_native.codebook(name)).astype(np.float32)


def _nearest(book: Floats, wanted: Floats) -> Integers:
    """The entries [n] of a codebook [entries, k] that are nearest to [n, k]."""
    halves = (book * book).sum(1) / 2
    found = [
        (halves - wanted[i : i + AT_ONCE] @ book.T).argmin(1)
        for i in range(0, len(wanted), AT_ONCE)
    ]
    made: Integers = np.concatenate(found).astype(np.int64)
    return made


def _scaled(x: Floats, groups: int, largest: float, most: int) -> tuple[Bytes, Integers, Floats]:
    """Scales of blocks [B, 256] in ``groups`` groups, whose largest elements are ``largest`` units.

    Returns:
        The stored d [B, 2]; n of the odd scales 2 n + 1, at most ``most``; elements over their group's unit.
    """
    parts = x.reshape(len(x), groups, -1)
    unit = np.abs(parts).max(-1) / largest
    d = (unit.max(1) / (2 * most + 1)).astype(np.float16)
    over = np.maximum(d.astype(np.float32), np.float32(1e-30))[:, None]
    n = np.clip(np.rint((unit / over - 1) / 2), 0, most).astype(np.int64)
    units = (over * (2 * n + 1))[..., None]
    scaled: Floats = (parts / units).reshape(len(x), 256).astype(np.float32)
    return d[:, None].view(np.uint8), n, scaled


def _eighth(d: Bytes, factor: float) -> Bytes:
    """d as it is stored: ``factor`` times the elements' scale."""
    made: Bytes = (d.view(np.float16) * np.float16(factor)).view(np.uint8)
    return made


def _even(scaled: Floats) -> tuple[Floats, Integers]:
    """Eights of elements: magnitudes, and seven bits of signs; if the signs are odd, the least one flips."""
    eights = scaled.reshape(len(scaled), 32, 8)
    negative = eights < 0
    odd = negative.sum(-1) % 2 == 1
    least = np.abs(eights).argmin(-1)
    turned = np.take_along_axis(negative, least[..., None], -1)[..., 0] ^ odd
    np.put_along_axis(negative, least[..., None], turned[..., None], -1)
    bits = (negative[..., :7] << np.arange(7)).sum(-1)
    return np.abs(eights), bits.astype(np.int64)


def _free(scaled: Floats) -> tuple[Floats, Bytes]:
    """Magnitudes [B, 256] and a bit for each sign [B, 32]."""
    return np.abs(scaled), np.packbits(scaled < 0, axis=1, bitorder="little")


def _entries(name: str, magnitudes: Floats, n_blocks: int) -> Integers:
    book = _book(name)
    return _nearest(book, magnitudes.reshape(-1, book.shape[1])).reshape(n_blocks, -1)


def _nibbles(n: Integers) -> Bytes:
    """[B, 2 k] -> [B, k] bytes, the first in the low nibble."""
    made: Bytes = (n[:, ::2] | n[:, 1::2] << 4).astype(np.uint8)
    return made


def _sevens(bits: Integers, n: Integers) -> Integers:
    """Four times seven signs and the scale of each 32 elements."""
    made: Integers = (bits.reshape(-1, 8, 4) << 7 * np.arange(4)).sum(-1) | n << 28
    return made


def _iq2_xxs(x: Floats) -> Bytes:
    d, n, scaled = _scaled(x, 8, 43, 15)
    magnitudes, bits = _even(scaled)
    at = _entries("IQ2_XXS", magnitudes, len(x)).reshape(-1, 8, 4).astype(np.uint8)
    words = _sevens(bits, n).astype("<u4")[..., None].view(np.uint8)
    return np.concatenate([_eighth(d, 8), np.concatenate([at, words], -1).reshape(len(x), 64)], 1)


def _iq2_xs(x: Floats) -> Bytes:
    d, n, scaled = _scaled(x, 16, 43, 15)
    magnitudes, bits = _even(scaled)
    words = (_entries("IQ2_XS", magnitudes, len(x)) | bits << 9).astype("<u2").view(np.uint8)
    return np.concatenate([_eighth(d, 8), words, _nibbles(n)], 1)


def _iq2_s(x: Floats) -> Bytes:
    d, n, scaled = _scaled(x, 16, 43, 15)
    magnitudes, signs = _free(scaled)
    at = _entries("IQ2_S", magnitudes, len(x))
    high = ((at >> 8).reshape(-1, 8, 4) << 2 * np.arange(4)).sum(-1).astype(np.uint8)
    return np.concatenate([_eighth(d, 8), at.astype(np.uint8), signs, high, _nibbles(n)], 1)


def _iq3_xxs(x: Floats) -> Bytes:
    d, n, scaled = _scaled(x, 8, 62, 15)
    magnitudes, bits = _even(scaled)
    at = _entries("IQ3_XXS", magnitudes, len(x)).astype(np.uint8)
    return np.concatenate([_eighth(d, 4), at, _sevens(bits, n).astype("<u4").view(np.uint8)], 1)


def _iq3_s(x: Floats) -> Bytes:
    d, n, scaled = _scaled(x, 8, 15, 15)
    magnitudes, signs = _free(scaled)
    at = _entries("IQ3_S", magnitudes, len(x))
    high = np.packbits((at >> 8).astype(bool), axis=1, bitorder="little")
    return np.concatenate([d, at.astype(np.uint8), high, signs, _nibbles(n)], 1)


def _eighths(scaled: Floats, less: npt.NDArray[np.bool_]) -> Integers:
    """IQ1's entries [B, 32], shifted by an eighth up or down."""
    eights = scaled.reshape(len(scaled), 32, 8) - np.where(less, -1, 1)[..., None]
    return _nearest(_book("IQ1_S") - 9, eights.reshape(-1, 8).astype(np.float32)).reshape(-1, 32)


def _iq1_s(x: Floats) -> Bytes:
    d, n, scaled = _scaled(x, 8, 9, 7)
    less = scaled.reshape(len(x), 8, 32).mean(-1) < 0
    at = _eighths(scaled, less.repeat(4, 1))
    high = ((at >> 8).reshape(-1, 8, 4) << 3 * np.arange(4)).sum(-1) | n << 12 | less << 15
    return np.concatenate(
        [_eighth(d, 8), at.astype(np.uint8), high.astype("<u2").view(np.uint8)], 1
    )


def _iq1_m(x: Floats) -> Bytes:
    d, n, scaled = _scaled(x, 16, 9, 7)
    less = scaled.reshape(len(x), 32, 8).mean(-1) < 0
    at = _eighths(scaled, less)
    stored = _eighth(d, 8).view(np.uint16).astype(np.int64)
    words = (n.reshape(-1, 4, 4) << 3 * np.arange(4)).sum(-1)
    words |= (stored >> 4 * np.arange(4) & 15) << 12
    high = _nibbles(at >> 8 | less << 3)
    return np.concatenate([at.astype(np.uint8), high, words.astype("<u2").view(np.uint8)], 1)


GRIDS: dict[str, tuple[int, Callable[[Floats], Bytes]]] = {
    "IQ2_XXS": (256, _iq2_xxs),
    "IQ2_XS": (256, _iq2_xs),
    "IQ2_S": (256, _iq2_s),
    "IQ3_XXS": (256, _iq3_xxs),
    "IQ3_S": (256, _iq3_s),
    "IQ1_S": (256, _iq1_s),
    "IQ1_M": (256, _iq1_m),
}
"""Elements of a block and the function that stores blocks [B, elements]."""
