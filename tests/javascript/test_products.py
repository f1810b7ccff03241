"""Products of matrices in blocks: sums that lie half-way between two numbers, and scales of every kind."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aleator import _native
from aleator.models.files.tensor_types import TENSOR_TYPES
from tests.javascript.conftest import Run
from tests.javascript.test_models import RELAXED

Matrix = tuple[str, NDArray[np.uint8]]


def _products(run: Run, matrices: list[Matrix], x: NDArray[np.float32]) -> Iterator[list[Any]]:
    """x times each matrix in blocks: here, in Node, and in Node with relaxed SIMD."""
    cases, all_y = [], []
    for kind, data in matrices:
        y = np.empty((len(x), len(data)), np.float32)
        matrix = _native.StoredMatrix(data.ravel(), kind, len(data), x.shape[1], None)
        _native.linear(_native.ThreadPool(1), matrix, x, y)
        all_y.append(y.ravel())
        texts = {"data": data.tobytes(), "x": x.tobytes()}
        given = {name: base64.b64encode(each).decode() for name, each in texts.items()}
        cases.append({"kind": kind, "out": len(data), "shape": x.shape, **given})
    found = [run("products", cases, flags) for flags in ((), RELAXED)]
    for y, *others in zip(all_y, *found, strict=True):
        yield [y, *(np.frombuffer(bytes.fromhex(each), np.float32) for each in others)]


def _block(u: list[int]) -> bytes:
    """A block of Q4_1: d = 1, m = 0."""
    every = (u + [0] * 32)[:32]
    return b"\x00\x3c\x00\x00" + bytes(
        low | high << 4 for low, high in zip(every[:16], every[16:], strict=True)
    )


def test_a_sum_that_float64_puts_half_way_is_rounded_once(run: Run) -> None:
    # 1, and 2^-23 or not, and what is 2^-54 more or less than half of that: 12505 * 85865 and 11627 * 92349 are
    # 2^30 + 1 and 2^30 - 1.
    rows, xs = [], []
    for second, factor, (q, u) in (
        (0, 85865, ([127] * 6 + [71, 1], [15] * 7 + [10])),
        (2, 92349, ([127] * 6 + [13, 1], [15] * 7 + [2])),
    ):
        rows.append(_block([0, 2]) + _block([0, second]) + _block(u))
        scaled = np.zeros((3, 32))
        scaled[0, :2] = 127 * 2.0**-7, 64 * 2.0**-7
        scaled[1, :2] = 127 * 2.0**-30, 64 * 2.0**-30
        scaled[2, : len(q)] = np.array(q) * factor * 2.0**-54
        xs.append(scaled.ravel())
    data = np.frombuffer(b"".join(rows), np.uint8).reshape(2, -1)
    [all_y] = _products(run, [("Q4_1", data)], np.array(xs, np.float32))
    assert all_y[0][0] == all_y[0][3] == 1 + 2.0**-23
    assert len({y.tobytes() for y in all_y}) == 1


def test_any_bytes_and_any_numbers_give_the_same_products(run: Run) -> None:
    r = np.random.default_rng(5)
    x = r.standard_normal((5, 512)).astype(np.float32)
    x[1] *= np.float32(2.0**-103)
    x[2, :256] = 0
    matrices = []
    for name in ("Q4_0", "Q4_1", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4", "Q4_K", "Q6_K", "IQ3_XXS"):
        kind = TENSOR_TYPES[name]
        # Of 67 rows those of later tiles are read ahead, up to the last.
        n = 67 if name in ("Q4_1", "Q6_K") else 7
        matrices.append((name, r.integers(0, 256, (n, 512 // kind.block * kind.size), np.uint8)))
    for expected, *found in _products(run, matrices, x):
        for y in found:
            np.testing.assert_array_equal(y, expected)
            kept = ~np.isnan(y)
            assert y[kept].tobytes() == expected[kept].tobytes()  # the sign of zeros too
