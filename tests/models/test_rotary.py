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
    assert len(rotary._table) == 0
    rotary.angles(torch.tensor([0]), 0)
    assert len(rotary._table) == 1024
    rotary.angles(torch.tensor([1023]), 1023)
    assert len(rotary._table) == 1024
    rotary.angles(torch.tensor([1024]), 1024)
    assert len(rotary._table) == 2048
    rotary.angles(torch.tensor([TABLE_ROWS - 1]), TABLE_ROWS - 1)
    assert len(rotary._table) == TABLE_ROWS


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
