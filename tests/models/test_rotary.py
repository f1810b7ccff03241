"""Rotations by position: the table and the direct way agree, and what is not rotated stays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from aleator.models.config import RopeConfig
from aleator.models.layers.rotary import TABLE_ROWS, Rotary
from aleator.models.layers.rotation import Rotation, _grown, frequencies

CPU = torch.device("cpu")


def made(**values: Any) -> Rotary:
    return Rotary(Rotation(RopeConfig(**({"dim": 8, "theta": 100.0} | values))), CPU)


@pytest.mark.parametrize(
    "at", [[0], [0, 1], [1023], [1024], [5, 3000, 7], [TABLE_ROWS - 1], [TABLE_ROWS], [10**6, 0]]
)
def test_angles_of_a_new_table(at: list[int]) -> None:
    rotary = made(attn_factor=1.5)
    for _ in range(2):  # of a table that has just been made, and of one that is there
        angles = rotary.angles(torch.tensor(at), max(at))
        assert angles.shape == (len(at), 1, 4)
        for row, position in zip(angles, at, strict=True):
            for i, angle in enumerate(row[0].tolist()):
                exact = position * 100.0 ** (-2 * i / 8)
                expected = 1.5 * complex(math.cos(exact), math.sin(exact))
                assert angle == pytest.approx(expected, abs=2e-6)


def test_the_table_is_used_below_its_bound_only() -> None:
    assert TABLE_ROWS == 32_768  # 16 MiB for heads of 128 channels
    rotary = made()
    rotary.angles(torch.tensor([TABLE_ROWS]), TABLE_ROWS)
    assert len(rotary.table) == 0
    rotary.angles(torch.tensor([0]), 0)
    assert len(rotary.table) == 1024
    rotary.angles(torch.tensor([1023]), 1023)
    assert len(rotary.table) == 1024
    rotary.angles(torch.tensor([1024]), 1024)
    assert len(rotary.table) == 2048
    rotary.angles(torch.tensor([TABLE_ROWS - 1]), TABLE_ROWS - 1)
    assert len(rotary.table) == TABLE_ROWS


def test_pairs_and_what_is_left_alone() -> None:
    x = torch.arange(12.0).view(1, 1, 12)
    for style, pairs in (("norm", [(0, 1), (2, 3), (4, 5), (6, 7)]),
                         ("neox", [(0, 4), (1, 5), (2, 6), (3, 7)])):  # fmt: skip
        rotary = made(style=style)
        out = rotary.rotate(x.clone(), rotary.angles(torch.tensor([3]), 3))[0, 0].double()
        for i, (a, b) in enumerate(pairs):
            turned = complex(a, b) * complex(*_unit(3 * 100.0 ** (-2 * i / 8)))
            assert (out[a].item(), out[b].item()) == pytest.approx(
                (turned.real, turned.imag), abs=1e-5
            )
        assert out[8:].tolist() == [8, 9, 10, 11]
        assert rotary.magnitude_over(12).tolist() == [1.0] * 12
    lengths = made(attn_factor=2.0).magnitude_over(12).tolist()
    assert lengths == [2.0] * 8 + [1.0] * 4


def _unit(angle: float) -> tuple[float, float]:
    return math.cos(angle), math.sin(angle)


def test_a_shift_keeps_lengths() -> None:
    rotary = made(attn_factor=2.0)
    keys = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(1))
    at, to = torch.tensor([0, 5, 9]), torch.tensor([4, 5, 2])
    stored = rotary.rotate(keys.clone(), rotary.angles(at, 9))
    moved = rotary.shift(stored, to - at)
    torch.testing.assert_close(moved, rotary.rotate(keys.clone(), rotary.angles(to, 5)))


def test_without_a_rotary_embedding_nothing_rotates() -> None:
    rotary = made(style="none", attn_factor=3.0, scaling="yarn", factor=2.0)
    x = torch.randn(2, 1, 8)
    assert rotary.magnitude == 1.0
    assert torch.equal(rotary.rotate(x.clone(), rotary.angles(torch.tensor([7, 900]), 900)), x)


def test_scalings() -> None:
    plain = 100.0 ** (-np.arange(4) * 2.0 / 8)
    rope = {"dim": 8, "theta": 100.0, "factor": 4.0, "original_context": 64}
    values, magnitude = frequencies(RopeConfig(scaling="linear", attn_factor=1.5, **rope))  # type: ignore[arg-type]
    np.testing.assert_array_equal(values, plain / 4)
    assert magnitude == 1.5
    values, magnitude = frequencies(RopeConfig(scaling="yarn", **rope))  # type: ignore[arg-type]
    assert magnitude == pytest.approx(1 + 0.1 * math.log(4))
    # Pair 0 rotates 10 times within 64 positions, pair 3 less than once: the ramp lies between.
    assert plain[3] / 4 <= values[3] < plain[3]
    assert values[0] == plain[0]
    assert (np.diff(values / plain) <= 0).all()
    divided, _ = frequencies(RopeConfig(scaling="none", **rope), np.array([1.0, 2, 4, 8]))  # type: ignore[arg-type]
    np.testing.assert_array_equal(divided, plain / [1, 2, 4, 8])
    values, magnitude = frequencies(RopeConfig(scaling="llama3", **rope))  # type: ignore[arg-type]
    turns = 64 * plain / (2 * math.pi)
    kept = np.clip((turns - 1) / 3, 0, 1)
    np.testing.assert_allclose(values, plain * ((1 - kept) / 4 + kept), rtol=1e-12)
    assert magnitude == 1.0


@pytest.mark.parametrize(
    ("factor", "n_ctx", "growth"), [(2.0, 512, 7.0), (1.0, 256, 2.0), (4.0, 128, 1.0)]
)
def test_the_base_grows_with_the_context(factor: float, n_ctx: int, growth: float) -> None:
    rope = RopeConfig(theta=100.0, dim=8, scaling="dynamic", factor=factor, original_context=128)
    assert _grown(rope, n_ctx) == pytest.approx(100.0 * growth ** (8 / 6), rel=1e-12)


YARN: dict[str, Any] = {
    "dim": 16, "theta": 500.0, "scaling": "yarn", "factor": 4.0, "original_context": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"truncate": False}, {"beta_fast": 8.0, "beta_slow": 2.0}, {"beta_fast": 1000.0},
        {"attn_factor": 0.5}, {"beta_fast": 3.0, "beta_slow": 2.99, "truncate": False},
        {"beta_slow": 1e-5}, {"factor": 1.0},
        {"beta_slow": 20.0, "beta_fast": 20.001, "truncate": False}, {"original_context": 4096},
    ],
)  # fmt: skip
def test_yarn_is_the_paper_s(changes: dict[str, Any]) -> None:
    """Written down a second time, in NumPy."""
    rope = RopeConfig(**YARN | changes)
    pairs = np.arange(rope.dim // 2)
    plain = rope.theta ** (-2.0 * pairs / rope.dim)
    low, high = (
        rope.dim * np.log(rope.original_context / (2 * np.pi * beta)) / (2 * np.log(rope.theta))
        for beta in (rope.beta_fast, rope.beta_slow)
    )
    if rope.truncate:
        low, high = np.floor(low), np.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    ramp = np.clip((pairs - low) / max(high - low, 0.001), 0, 1)
    values, magnitude = frequencies(rope)
    np.testing.assert_allclose(values, plain * (1 - ramp) + plain / rope.factor * ramp, rtol=1e-9)
    assert magnitude == pytest.approx(
        rope.attn_factor * (1 + 0.1 * math.log(rope.factor)), rel=1e-12
    )


def test_some_pairs_rotate_and_others_do_not() -> None:
    rope = RopeConfig(
        dim=16, theta=100.0, scaling="proportional", factor=2.0, n_rotated=3, attn_factor=1.5
    )
    plain = 100.0 ** (-2.0 * np.arange(8) / 16)
    values, magnitude = frequencies(rope)
    np.testing.assert_allclose(values, np.where(np.arange(8) < 3, plain / 2, 0.0), rtol=1e-12)
    assert magnitude == 1.5
    divisors = np.arange(1.0, 9.0)
    np.testing.assert_allclose(frequencies(rope, divisors)[0], plain / divisors / 2, rtol=1e-12)


@pytest.mark.parametrize(("n_ctx", "grows"), [(0, False), (128, False), (129, True)])
def test_from_which_context_on_the_base_grows(n_ctx: int, grows: bool) -> None:
    rope = RopeConfig(theta=100.0, dim=8, scaling="dynamic", factor=2.0, original_context=128)
    values, magnitude = frequencies(rope, None, n_ctx)
    theta = _grown(rope, n_ctx) if grows else 100.0
    np.testing.assert_allclose(values, theta ** (-2.0 * np.arange(4) / 8), rtol=1e-12)
    assert magnitude == 1.0


@pytest.mark.parametrize("style", ["norm", "neox"])
def test_stored_keys_are_rotated_behind_an_offset(style: Any) -> None:
    rotation = Rotation(RopeConfig(dim=8, theta=100.0, style=style, offset=3, attn_factor=2.0))
    keys = np.random.default_rng(1).standard_normal((4, 2, 11)).astype(np.float32)
    deltas = np.array([0, -3, 7, 100])
    wanted = keys.copy()
    plain = Rotation(RopeConfig(dim=8, theta=100.0, style=style))
    wanted[..., 3:] = plain.shift(np.ascontiguousarray(keys[..., 3:]), deltas)
    assert rotation.shift(keys.copy(), deltas).tobytes() == wanted.tobytes()
    assert Rotary(rotation, CPU).magnitude_over(11).tolist() == [1.0] * 3 + [2.0] * 8
    turned = torch.from_numpy(keys.copy())
    Rotary(rotation, CPU).shift(turned, torch.from_numpy(deltas))
    np.testing.assert_allclose(turned.numpy(), wanted, rtol=1e-5, atol=1e-5)
