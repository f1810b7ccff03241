"""ggml's block formats: bytes against the gguf package, reading, the Hadamard turn."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch

from aleator import _native
from aleator.cache.storage.layer import TYPES
from aleator.cache.storage.storage import hadamard_block
from aleator.cache.storage.tensors import dequantised, hadamard, quantised
from aleator.core.threads import pool as thread_pool

Floats = npt.NDArray[np.float32]
KINDS = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
DATA = Path(__file__).parents[2] / "data"


def store(kind: str, x: Floats, rotation: int = 0, threads: int = 1) -> npt.NDArray[np.uint8]:
    data = np.zeros((len(x), TYPES[kind].bytes(x.shape[1])), np.uint8)
    cells = np.arange(len(x))
    _native.store_rows(thread_pool(threads), kind.upper(), rotation, x, data, cells)
    return data


def load(kind: str, data: npt.NDArray[np.uint8], width: int, rotation: int = 0) -> Floats:
    y = np.empty((len(data), width), np.float32)
    _native.load_rows(thread_pool(1), kind.upper(), rotation, data, np.arange(len(data)), y)
    return y


def rows() -> Floats:
    """Ordinary rows, and blocks whose rounding is delicate."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((400, 96)).astype(np.float32)
    x *= np.exp2(rng.integers(-20, 12, (400, 1))).astype(np.float32)
    x[0] = 0
    x[1, :32] = np.arange(32) - 16  # the largest magnitude is negative
    x[2, :32] = -x[1, :32]
    x[3, :32] = np.tile([127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5], 4)  # ties, half away from 0
    x[4, :32] = np.tile([127, np.nextafter(np.float32(0.5), np.float32(0)), 0, 0], 8)
    x[5, :32] = np.tile([8, -8, 0.5, -0.5], 8)  # of two equal magnitudes the first counts
    x[6, :32] = np.tile([-8, 8, 0.5, -0.5], 8)
    x[7, :32] = 1e-30  # a scale that float16 does not have
    x[8, :32] = np.tile([-8, 7.5, 7.4999995, -7.5], 8)
    return x


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_those_of_ggml_reference(kind: str) -> None:
    golden = np.load(DATA / "golden_blocks.npz")
    x, expected = golden["x"], golden[kind]
    assert np.array_equal(store(kind, x), expected)
    assert np.array_equal(quantised(TYPES[kind], torch.from_numpy(x)).numpy(), expected)
    read = gguf.quants.dequantize(expected, gguf.GGMLQuantizationType[kind.upper()])
    assert np.array_equal(load(kind, expected, 96).view(np.int32), read.view(np.int32))
    again = dequantised(TYPES[kind], torch.from_numpy(expected)).numpy()
    assert np.array_equal(again.view(np.int32), read.view(np.int32))


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_of_either_sign_are_zero_blocks(kind: str) -> None:
    x = np.zeros((2, 32), np.float32)
    x[1] = -0.0
    data = store(kind, x)
    assert (load(kind, data, 32) == 0).all()
    assert np.array_equal(quantised(TYPES[kind], torch.from_numpy(x)).numpy(), data)
    if kind == "iq4_nl":
        assert (data == 0).all()


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "iq4_nl"])  # which gguf cannot write
def test_bytes_are_those_of_the_reference(kind: str) -> None:
    x = rows()
    expected = gguf.quants.quantize(x, gguf.GGMLQuantizationType[kind.upper()])
    for threads in (1, 2):
        assert np.array_equal(store(kind, x, threads=threads), expected)
    assert np.array_equal(quantised(TYPES[kind], torch.from_numpy(x)).numpy(), expected)
    read = gguf.quants.dequantize(expected, gguf.GGMLQuantizationType[kind.upper()])
    assert np.array_equal(load(kind, expected, 96), read)
    assert np.array_equal(dequantised(TYPES[kind], torch.from_numpy(expected)).numpy(), read)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_does_not_become_a_number(kind: str, bad: float) -> None:
    x = np.ones((1, 64), np.float32)
    x[0, 40] = bad
    both = store(kind, x), quantised(TYPES[kind], torch.from_numpy(x)).numpy()
    if not (kind == "q8_0" and math.isnan(bad)):  # whose elements no reference defines
        assert np.array_equal(*both)
    for data in both:
        y = load(kind, data, 64)
        assert np.isnan(y[0, 32:]).all()
        assert np.allclose(y[0, :32], 1, atol=0.01)


@pytest.mark.parametrize("kind", ["q4_1", "q5_1"])
@pytest.mark.parametrize("same", [math.inf, -math.inf, 3.0])
def test_a_block_of_one_value_has_no_step(kind: str, same: float) -> None:
    x = np.full((1, 32), same, np.float32)
    data = store(kind, x)
    assert np.array_equal(quantised(TYPES[kind], torch.from_numpy(x)).numpy(), data)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [-2, -1, 0, 1, 2])
def test_the_least_magnitude_that_is_not_zero(kind: str, steps: int) -> None:
    """Of iq4_nl it is 1e-15; the others round the scale to 0."""
    least = np.float32(1e-15)
    for _ in range(abs(steps)):
        least = np.nextafter(least, np.float32(steps))
    x = np.zeros((1, 32), np.float32)
    x[0, [3, 5]] = least, -least
    data = store(kind, x)
    assert np.array_equal(data, quantised(TYPES[kind], torch.from_numpy(x)).numpy())
    assert kind != "iq4_nl" or bool(data.any()) == (steps >= 0)


@pytest.mark.parametrize("block", [2, 4, 8, 16, 32, 64, 128, 256])
def test_hadamard_is_its_own_inverse_and_what_torch_computes(block: int) -> None:
    x = np.random.default_rng(block).standard_normal((5, 512)).astype(np.float32)
    turned = load("f32", store("f32", x, block).view(np.uint8), 512)
    matrix: Any = np.ones((1, 1))
    while len(matrix) < block:
        matrix = np.kron([[1, 1], [1, -1]], matrix)
    expected = (x.astype(np.float64).reshape(-1, block) @ matrix).reshape(x.shape) / block**0.5
    assert np.abs(turned - expected).max() < 2e-6
    assert torch.allclose(hadamard(torch.from_numpy(x), block), torch.from_numpy(turned), atol=4e-6)
    back = load("f32", store("f32", x, block), 512, block)
    assert np.abs(back - x).max() < 2e-6


def test_an_outlier_costs_the_others_less_when_turned() -> None:
    x = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)
    x[:, 7] *= 60
    plain = load("q4_0", store("q4_0", x), 128) - x
    turned = load("q4_0", store("q4_0", x, 128), 128, 128) - x
    assert np.sqrt((turned**2).mean()) < 0.8 * np.sqrt((plain**2).mean())


@pytest.mark.parametrize(
    ("dims", "keys", "block"),
    [
        ((64, 64), True, 64),
        ((128,), True, 128),
        ((192,), True, 64),
        ((256,), True, 256),
        ((256,), False, 64),
        ((80,), True, 0),
        ((32,), False, 0),
        ((64, 128), True, 0),  # not all of one size
        ((), True, 0),
    ],
)
def test_hadamard_block(dims: tuple[int, ...], keys: bool, block: int) -> None:
    assert hadamard_block([(2, d) for d in dims], keys) == block


@pytest.mark.parametrize(
    "change",
    [
        {"type": "Q6_K"},
        {"rotation": 24},
        {"rotation": 128},
        {"rotation": -1},
        {"x": np.zeros((2, 96), np.float32)},
        {"x": np.zeros((3, 64), np.float32)},
        {"cells": np.array([0, 4])},
        {"cells": np.array([-1, 0])},
    ],
)
def test_bad_arguments_change_nothing(change: dict[str, Any]) -> None:
    data = np.full((4, 68), 7, np.uint8)
    arguments = {
        "type": "Q8_0",
        "rotation": 64,
        "x": np.ones((2, 64), np.float32),
        "data": data,
        "cells": np.array([1, 2]),
        **change,
    }
    with pytest.raises(ValueError):  # noqa: PT011  several messages
        _native.store_rows(thread_pool(1), **arguments)
    assert (data == 7).all()


@pytest.mark.parametrize("isa", ["base", "v3"])
def test_other_instruction_sets_give_the_same(isa: str) -> None:
    if isa == "v3" and _native.isa() == "base":
        pytest.skip("this processor has no AVX2")
    here = Path(__file__)
    chosen = "reference or not_finite or inverse or outlier"
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(here), "-k", chosen],
        check=True,
        env={**os.environ, "ALEATOR_ISA": isa},
        cwd=here.parents[3],
        capture_output=True,
    )
