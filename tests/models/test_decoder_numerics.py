"""Norms, activations and rotation: native code against the contract's reference, bit for bit."""

from __future__ import annotations

import math
from decimal import Context, Decimal

import numpy as np
import pytest
from decoder_numerics import floats as reference

from aleator import _native
from aleator.models.config import RopeConfig
from aleator.models.layers.rotation import frequencies
from tests.models.bits import equal, numbers

SPECIAL = np.array(
    [0, -0.0, 1, -1, 87.5, -87.5, 88.5, -88.5, 1e-30, -1e-30, 1e30, -1e30, np.inf, -np.inf, np.nan],
    np.float32,
)


@pytest.mark.parametrize("n", [1, 7, 16, 37, 64, 576])
def test_rms_norm_is_the_reference(n: int) -> None:
    x, weight = numbers(5, n), numbers(n, seed=1)
    expected = reference.rms_norm(x, weight, 1e-5)
    _native.rms_norm(x, weight, 1e-5)
    assert equal(x, expected)
    exact = numbers(5, n).astype(np.float64)
    exact = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(x, exact, rtol=1e-6)


@pytest.mark.parametrize("n", [1, 7, 16, 37, 64, 576])
def test_layer_norm_is_the_reference(n: int) -> None:
    x, weight, bias = numbers(5, n), numbers(n, seed=1), numbers(n, seed=4)
    expected = reference.layer_norm(x, weight, bias, 1e-5)
    exact = x.astype(np.float64)
    _native.layer_norm(x, np.concatenate((weight, bias)), 1e-5)
    assert equal(x, expected)
    exact = exact - exact.mean(-1, keepdims=True)
    exact = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-5) * weight + bias
    np.testing.assert_allclose(x, exact, rtol=1e-5, atol=1e-4)


def test_exact_gelu_is_near_the_error_function() -> None:
    x = np.linspace(-12, 12, 4001).astype(np.float32)
    exact = [0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x.tolist()]
    np.testing.assert_allclose(reference.gelu_exact(x), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_exact", "relu_squared"])
def test_gates_are_the_reference(name: str) -> None:
    for gate in (numbers(1000), SPECIAL.copy()):
        up = numbers(len(gate), seed=2)
        with np.errstate(all="ignore"):
            expected = getattr(reference, name)(gate) * up
        _native.activate(name, gate, up)
        assert equal(gate, expected)


def test_rounded_gates_are_llama_cpps_formula() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    halves = halves[np.isfinite(halves)]
    x = halves.astype(np.float64)
    inner = np.tanh(0.79788456080286535588 * x * (1 + 0.044715 * x * x))
    exact = np.where(x <= -10, 0, np.where(x >= 10, x, 0.5 * x * (1 + inner)))
    got = halves.copy()
    _native.activate("gelu_rounded", got, np.ones_like(got))
    assert (np.abs(got - exact) <= 1e-3 * np.abs(exact) + 2e-5).all()


def test_tanh_of_logits_is_the_reference() -> None:
    x = np.concatenate((numbers(2000, spread=8), SPECIAL))[None]
    with np.errstate(all="ignore"):
        expected = reference.tanh(x / np.float32(30)) * np.float32(30)
        exact = np.tanh(x[:, :2000].astype(np.float64) / 30) * 30
    _native.soften_logits(x, 30.0)
    assert equal(x, expected)
    np.testing.assert_allclose(x[:, :2000], exact, rtol=4e-7)


def test_exponentials_are_near_the_exact_ones() -> None:
    x = np.linspace(-86.9, 87.9, 20_001).astype(np.float32)
    np.testing.assert_allclose(reference.exponential(x), np.exp(x.astype(np.float64)), rtol=2.4e-7)
    y = np.linspace(-80, 80, 20_001).astype(np.float32)
    np.testing.assert_allclose(
        reference.softplus(y), np.log1p(np.exp(y.astype(np.float64))), rtol=4e-7
    )


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation_is_the_reference(interleaved: bool) -> None:
    x, angles = numbers(6, 3, 22), numbers(6, 5, 2, seed=3)
    expected = reference.rotate(x, angles[:, None], interleaved=interleaved)
    _native.rotate_heads(x, angles, interleaved)
    assert equal(x, expected)


@pytest.mark.parametrize("block", [1, 2, 4, 8, 16, 32, 64])
def test_hadamard_is_the_reference(block: int) -> None:
    x = numbers(3, 128)
    expected = reference.hadamard(x, block)
    _native.hadamard(x, block)
    assert equal(x, expected)


# Angles


def test_angles_are_the_exact_ones_rounded() -> None:
    """Against sines and cosines of the C library, which are off by less than 1e-15 here."""
    positions = np.unique(np.geomspace(1, 2**20, 400).astype(np.int32))
    positions = np.concatenate(([0], positions, [2**31 - 1])).astype(np.int32)
    rates, _ = frequencies(RopeConfig(dim=64, theta=10_000.0))
    angles = np.empty((len(positions), 32, 2), np.float32)
    _native.rotary_angles(rates, positions, 1.0, angles)
    for position, row in zip(positions.tolist(), angles.tolist(), strict=True):
        for rate, (cos, sin) in zip(rates.tolist(), row, strict=True):
            assert abs(cos - math.cos(position * rate)) < 6.1e-8 / 2
            assert abs(sin - math.sin(position * rate)) < 6.1e-8 / 2


def test_angles_of_far_positions_are_near_the_exact_ones() -> None:
    """The exact ones: 10,000^(-2i / 64) and its multiples modulo 2 pi, in 60 digits."""
    context = Context(prec=60)
    turn = Decimal("6.28318530717958647692528676655900576839433879875021164194988918461563281")
    rates, _ = frequencies(RopeConfig(dim=64, theta=10_000.0))
    positions = np.array([2**20, 2**20 - 1, 777_777, 123_457], np.int32)
    angles = np.empty((len(positions), 32, 2), np.float32)
    _native.rotary_angles(rates, positions, 1.0, angles)
    for position, row in zip(positions.tolist(), angles, strict=True):
        for i, (cos, sin) in enumerate(row):
            rate = context.power(Decimal(10_000), context.divide(Decimal(-2 * i), Decimal(64)))
            exact = float(context.remainder(context.multiply(Decimal(position), rate), turn))
            assert abs(cos - math.cos(exact)) < 3.1e-8
            assert abs(sin - math.sin(exact)) < 3.1e-8


def test_angles_of_this_machine_are_everyones() -> None:
    """The bits of one table, made once: other machines and instruction sets must give them too."""
    rates, magnitude = frequencies(
        RopeConfig(dim=128, theta=1e6, scaling="yarn", factor=4.0, original_context=4096)
    )
    angles = np.empty((1 << 10, 64, 2), np.float32)
    positions = np.arange(1 << 10, dtype=np.int32) * 1021
    _native.rotary_angles(rates, positions, magnitude, angles)
    words = angles.reshape(-1).view(np.uint32).astype(np.uint64)
    mixed = (words * (2 * np.arange(len(words), dtype=np.uint64) + 1)).sum(dtype=np.uint64)
    assert hex(int(mixed)) == "0xd916281c82ce7105"
