"""The checksum of state files: any damage within eight bytes changes it, and what it is stays."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest

from aleator import _native


def checksum(data: Any) -> bytes:
    """Of anything that has bytes."""
    return _native.checksum(np.asarray(memoryview(data)))


@pytest.mark.parametrize("n", [0, 1, 7, 8, 63, 64, 65, 200, 1000])
def test_every_bit_and_every_byte_counts(n: int) -> None:
    rng = np.random.default_rng(n)
    data = rng.integers(0, 256, n, dtype=np.uint8)
    seen = {checksum(data)}
    for i in range(8 * n):
        data[i // 8] ^= 1 << i % 8
        seen.add(checksum(data))
        data[i // 8] ^= 1 << i % 8
    for length in range(n):
        seen.add(checksum(data[:length]))
    assert len(seen) == 1 + 9 * n


def test_zeros_of_different_lengths_and_places_differ() -> None:
    assert len({checksum(bytes(n)) for n in range(300)}) == 300
    swapped = bytes(8) + b"12345678" + bytes(48)
    assert checksum(swapped) != checksum(swapped[8:] + swapped[:8])


def test_damage_that_cancels_out_in_a_lane_is_found() -> None:
    """The highest bit of a word comes back as bit 28 of the lane's state, before the lane's next word."""
    data = bytearray(200)
    before = checksum(data)
    data[7] ^= 0x80
    data[64 + 3] ^= 0x10
    assert checksum(data)[:8] == before[:8]
    assert checksum(data) != before


def test_it_is_the_same_everywhere() -> None:
    def mixed(state: int, word: int) -> int:
        x = ((state ^ word) * 0x9E3779B97F4A7C15) % 2**64
        return (x << 29 | x >> 35) % 2**64

    data = bytes(range(150))
    states, sums = list(range(1, 9)), [0] * 8
    for at in range(0, 192, 8):
        word, lane = int.from_bytes(data[at : at + 8].ljust(8, b"\0"), "little"), at // 8 % 8
        states[lane] = mixed(states[lane], word)
        sums[lane] = (sums[lane] + states[lane]) % 2**64
    wanted = b"".join(
        reduce(mixed, each, len(data)).to_bytes(8, "little") for each in (states, sums)
    )
    assert checksum(memoryview(data)) == checksum(bytearray(data)) == wanted
