from __future__ import annotations

import numpy as np
import pytest

from aleator import _native
from aleator.core import contract, philox

# Known answers published with Random123 (Salmon et al. 2011), file kat_vectors.
VECTORS = [
    ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, 0xFFFFFFFFFFFFFFFF, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        0x299F31D0A4093822,
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), VECTORS)
def test_philox_known_answers(
    counter: tuple[int, int, int, int], key: int, words: tuple[int, ...]
) -> None:
    assert philox.philox4x32(counter, key) == words
    assert tuple(_native.philox4x32(counter, key)) == words


def test_philox_native_equals_reference() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        counter = tuple(int(x) for x in rng.integers(2**32, size=4))
        key = int(rng.integers(2**63)) * 2 + 1
        assert tuple(_native.philox4x32(counter, key)) == philox.philox4x32(counter, key)  # type: ignore[arg-type]


def test_streams_differ_in_every_part() -> None:
    words = {
        philox.stream(contract.Purpose.DIST, ordinal, completion)
        for ordinal in (0, 1, 255)
        for completion in (0, 1, contract.MAX_COMPLETION)
    }
    assert len(words) == 9
    assert max(words) < 2**32


def test_mt19937_is_the_standard_generator() -> None:
    words = _native.Mt19937(5489)
    stream = [words.word() for _ in range(10000)]
    assert stream[0] == 3499211612
    assert stream[-1] == 4123659995  # required of std::mt19937 by the C++ standard


@pytest.mark.parametrize(
    ("seed", "doubles"),
    [  # drawn by llama.cpp 0.5.0's `dist` sampler
        (42, (0.796542984287846, 0.18343478789336848, 0.7796909976126613, 0.5968501615800565)),
        (0, (0.5928446165166826, 0.8442657442565983, 0.8579456199898299, 0.8472517373843312)),
    ],
)
def test_mt19937_uniforms_of_llama_cpp(seed: int, doubles: tuple[float, ...]) -> None:
    generator = _native.Mt19937(seed)
    assert tuple(generator.uniform_double() for _ in doubles) == doubles
    generator.reseed(seed)
    assert generator.uniform_double() == doubles[0]


def test_mt19937_float_uniforms_of_llama_cpp() -> None:
    generator = _native.Mt19937(0)
    drawn = [np.float32(generator.uniform_float()) for _ in range(4)]
    assert drawn == [np.float32(x) for x in (0.54881352, 0.59284461, 0.71518934, 0.84426576)]
