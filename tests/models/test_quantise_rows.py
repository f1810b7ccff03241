"""The native quantisers: llama.cpp's bytes, for any number of threads; what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from golden_quantised import FILE, TYPES, WIDTH, digests, importances, rows

import aleator._native as _native
from aleator.core.threads import pool
from aleator.models.files.tensor_types import TENSOR_TYPES

GOLDEN = json.loads(FILE.read_text())


def quantised(
    kind: str, x: np.ndarray, importance: np.ndarray | None = None, n_threads: int = 1
) -> np.ndarray:
    block = TENSOR_TYPES[kind]
    made = np.full((len(x), x.shape[1] // block.block * block.size), 0xA5, np.uint8)
    _native.quantise_rows(pool(n_threads), kind, x, importance, made)
    return made


@pytest.mark.parametrize("weighed", [False, True], ids=["plain", "weighed"])
@pytest.mark.parametrize("kind", TYPES)
def test_bytes_are_llama_cpps(kind: str, weighed: bool) -> None:
    made = quantised(kind, rows(), importances() if weighed else None)
    assert digests(made) == GOLDEN[kind][weighed]


@pytest.mark.parametrize("kind", ["Q4_0", "Q2_K", "Q3_K", "Q5_K", "Q6_K"])
def test_rows_do_not_depend_on_what_is_beside_them(kind: str) -> None:
    x, importance = rows(), importances()
    whole = quantised(kind, x, importance, n_threads=2)
    assert np.array_equal(whole, quantised(kind, x, importance))
    for first, count in ((3, 1), (40, 5)):
        part = quantised(kind, x[first : first + count], importance)
        assert np.array_equal(part, whole[first : first + count])


def test_floats() -> None:
    x = rows()
    assert np.array_equal(quantised("F32", x).view(np.float32), x)
    assert np.array_equal(quantised("F16", x).view(np.float16), x.astype(np.float16))


def test_mxfp4_just_below_a_power_of_two() -> None:
    """The logarithm of float32 rounds to the power there, the further from 1 the earlier."""
    below = np.nextafter(np.float32(2**-8), np.float32(0))
    x = np.full((1, 32), below, np.float32)
    assert quantised("MXFP4", x)[0, 0] == 127 - 2 - 8
    assert quantised("MXFP4", x * np.float32(0.999))[0, 0] == 127 - 2 - 9
    assert quantised("MXFP4", np.full((1, 32), 1e-39, np.float32))[0, 0] == 0


def test_refused() -> None:
    x = np.zeros((2, WIDTH), np.float32)
    made = np.zeros((2, WIDTH // 32 * 18), np.uint8)
    for kind, values, importance in (
        ("IQ4_NL", x, None),
        ("Q4_1", x, None),
        ("Q4_0", x[:1], None),
        ("Q4_0", x, np.zeros(WIDTH - 1, np.float32)),
    ):
        with pytest.raises(ValueError, match=r"IQ4_NL|\[rows, row bytes\]"):
            _native.quantise_rows(pool(1), kind, values, importance, made)
    with pytest.raises(ValueError, match="multiple of 256"):
        _native.quantise_rows(pool(1), "Q4_K", x[:, :288].copy(), None, made)
    assert not made.any()
