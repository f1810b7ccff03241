"""Products with BF16 in pairs: native code against the contract's reference, bit for bit, at its limits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from decoder_numerics.floats import dot16, paired_products, rounded

from aleator import _native
from aleator.core.threads import pool as thread_pool
from tests.models.bits import equal
from tests.models.test_native_linear import product

Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.uint16]


def matrix(bits: Halves, bias: Floats | None = None) -> _native.StoredMatrix:
    return _native.StoredMatrix(
        bits.view(np.uint8).reshape(-1), "BF16", len(bits), bits.shape[1], bias
    )


def widened(bits: Halves) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def halves(values: Floats) -> Halves:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def check(bits: Halves, x: Floats, counts: tuple[int, ...], bias: Floats | None = None) -> None:
    with np.errstate(all="ignore"):
        expected = paired_products(widened(bits), x, bias)
    for tokens in counts:
        got = product(matrix(bits, bias), x[:tokens], 1 + tokens % 3)
        assert equal(got, expected[:tokens]), (bits.shape, tokens)


@pytest.mark.parametrize("n", [1, 15, 31, 32, 33, 64, 95, 257, 800, 1601])
@pytest.mark.parametrize("out", [1, 5, 22])
def test_any_shape_is_the_reference(out: int, n: int) -> None:
    rng = np.random.default_rng([out, n])
    bits = halves(rng.standard_normal((out, n)).astype(np.float32))
    x = rng.standard_normal((64, n)).astype(np.float32)
    check(bits, x, (*range(1, 20), 31, 64), rng.standard_normal(out).astype(np.float32))


@pytest.mark.parametrize("exponents", [(0, 256), (0, 70), (64, 70), (60, 200), (100, 255)])
def test_weights_and_activations_of_any_size_are_the_reference(exponents: tuple[int, int]) -> None:
    """Subnormal ones, some below 2^-60, infinities, NaN; sums that overflow or vanish."""
    rng = np.random.default_rng(exponents)
    low, high = exponents
    bits = rng.integers(low << 7, high << 7, (26, 70)).astype(np.uint16)
    bits |= rng.integers(0, 2, bits.shape, dtype=np.uint16) << np.uint16(15)
    bits[rng.random(bits.shape) < 0.1] = 0
    words = rng.integers(40 << 23, 160 << 23, (40, 70)).astype(np.uint32)
    x = (words | rng.integers(0, 2, words.shape).astype(np.uint32) << np.uint32(31)).view(
        np.float32
    )
    x[7, 3], x[9, 4], x[11, 5], x[12] = np.nan, np.inf, 3.4e38, 1e-40
    check(bits, x, (1, 2, 3, 6, 7, 13, 16, 40))


@pytest.mark.parametrize("row", [0, 3, 6, 11])
@pytest.mark.parametrize("column", [0, 31, 64, 69])
def test_one_small_weight_is_not_taken_for_zero(row: int, column: int) -> None:
    """Of results below 2^-126, which AVX512-BF16 gives as 0."""
    bits = np.zeros((14, 70), np.uint16)
    bits[:, 1] = 0x2180  # 2^-60: nothing smaller is looked for
    bits[row, column] = 0x2100  # 2^-62
    x = np.zeros((20, 70), np.float32)
    x[:, column] = 2.0**-52 * (1 + np.arange(20) / 128)
    x[:, 1] = 0 if column != 1 else x[:, 1]
    expected = paired_products(widened(bits), x)
    assert (np.abs(expected[:, row]) > 0).all()
    check(bits, x, (1, 2, 5, 6, 8, 20))
    tiny = np.full((8, 64), 0x0001, np.uint16)  # the least of all
    check(tiny, np.full((9, 64), 1, np.float32), (1, 4, 9))


@pytest.mark.parametrize("n", [2048, 2050, 3072, 4100])
@pytest.mark.parametrize("small", [None, (0, 0), (5, 2049), (17, 1030)])
def test_long_rows_and_many_tokens_are_the_reference(n: int, small: tuple[int, int] | None) -> None:
    """Whole rows and chunks, several groups of tokens; a weight too small in each chunk."""
    rng = np.random.default_rng(n)
    bits = halves(rng.standard_normal((19, n)).astype(np.float32))
    if small is not None:
        bits[:] &= 0x8000  # zeros
        bits[small[0], min(small[1], n - 1)] = 0x0001
    x = rng.standard_normal((150, n)).astype(np.float32)
    check(bits, x, (7, 16, 132, 133, 150))


@pytest.mark.parametrize("row", [0, 200, 515])
def test_one_small_weight_of_a_matrix_from_memory(row: int) -> None:
    bits = halves(np.random.default_rng(row).standard_normal((516, 544)).astype(np.float32))
    bits[row] = 0
    bits[row, 70] = 0x0001
    check(bits, np.ones((1, 544), np.float32), (1,), np.zeros(516, np.float32))


def test_activations_are_rounded_as_torch_rounds_them() -> None:
    rng = np.random.default_rng(5)
    x = rng.integers(0, 2**32, (1, 4096)).astype(np.uint32).view(np.float32)
    x[0, :6] = [
        2.0**-52,
        np.nextafter(np.float32(2.0**-52), np.float32(0)),
        -0.0,
        np.inf,
        3.4e38,
        1 + 2.0**-8,
    ]
    theirs = torch.from_numpy(x).bfloat16().float().numpy()
    small = np.abs(x) < 2.0**-52
    assert equal(rounded(x), np.where(small, np.float32(0), theirs))
    # Natively: each alone times 1.
    unit = np.full((1, 1), 0x3F80, np.uint16)
    assert equal(product(matrix(unit), x.reshape(-1, 1))[:, 0], rounded(x)[0])


def test_of_each_pair_the_second_product_comes_first() -> None:
    rng = np.random.default_rng(6)
    bits = halves(
        (rng.standard_normal((64, 256)) * 2.0 ** rng.integers(-8, 8, (64, 256))).astype(np.float32)
    )
    x = rounded(rng.standard_normal((3, 256)).astype(np.float32))
    in_order = dot16(widened(bits), x[:, None])
    check(bits, x, (1, 2, 3))
    assert not equal(product(matrix(bits), x), in_order)


PRODUCTS = """
import numpy as np
from aleator import _native
from aleator.core.threads import pool
rng = np.random.default_rng(8)
bits = rng.integers(0, 2**16, (40, 200)).astype(np.uint16) & 0xBFFF
m = _native.StoredMatrix(bits.view(np.uint8).reshape(-1), "BF16", 40, 200)
y = np.empty((33, 40), np.float32)
_native.linear(pool(1), m, rng.standard_normal((33, 200)).astype(np.float32), y)
print(y.tobytes().hex())
"""


def test_every_instruction_set_gives_the_same() -> None:
    """The best one, and x86-64's three levels, that with AVX-512 without AVX512-BF16."""
    made = set()
    for isa in ("", "base", "v3", "v4-fma"):
        environment = {name: each for name, each in os.environ.items() if name != "ALEATOR_ISA"}
        environment |= {"ALEATOR_ISA": isa} if isa else {}
        command = [sys.executable, "-c", PRODUCTS]
        made.add(subprocess.check_output(command, env=environment, cwd=Path(__file__).parent))
    assert len(made) == 1


def test_rows_are_read_as_they_are_stored() -> None:
    bits = np.arange(99, dtype=np.uint16).reshape(3, 33) << np.uint16(7)
    y = np.empty((3, 33), np.float32)
    _native.read_rows(thread_pool(1), matrix(bits), np.arange(3), y)
    assert equal(y, widened(bits))
