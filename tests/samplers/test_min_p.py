from __future__ import annotations

import math

import numpy as np
import pytest

from aleator import samplers as S
from tests.samplers.steps import INF, NAN, f32, kept, kept_by_llama, logs

P = logs([0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        (0.0, [0, 1, 2, 3]), (0.24, [0, 1, 2, 3]), (0.26, [1, 2, 3]), (0.49, [1, 2, 3]), (0.51, [2, 3]),
        (0.74, [2, 3]), (0.76, [3]), (1.0, [3]),
    ],
)  # fmt: skip
def test_what_is_likely_enough_beside_the_best_stays(p: float, expected: list[int]) -> None:
    assert kept(P, S.MinP(min_p=p)) == kept_by_llama(P, S.MinP(min_p=p)) == expected


def test_equality_stays() -> None:
    assert kept(logs([0.5, 0.25, 0.125, 0.125]), S.MinP(min_p=0.5)) == [0, 1]
    bound = np.float32(math.log(float(np.float32(0.3))))
    below = np.nextafter(bound, np.float32(-9))
    assert kept(f32(0, bound, below), S.MinP(min_p=0.3)) == [0, 1]


def test_one_keeps_what_ties_with_the_best() -> None:
    assert kept(f32(1, 3, 2, 3), S.MinP(min_p=1.0)) == [1, 3]
    assert kept_by_llama(f32(1, 3, 2, 3), S.MinP(min_p=1.0)) == [1, 3]


def test_a_temperature_beyond_float32_takes_the_bound_to_minus_infinity() -> None:
    assert kept(f32(-1.8, -1.05), S.Temperature(1e39), S.MinP(min_p=0.5)) == [0, 1]


def test_min_keep_takes_the_first_of_the_order() -> None:
    assert kept(P, S.MinP(min_p=0.9, min_keep=2)) == [2, 3]
    assert kept(f32(2, 1, 1, 1), S.MinP(min_p=0.9, min_keep=3)) == [0, 1, 2]  # ties: lower ids
    assert kept(f32(-INF, 1, NAN, 0), S.MinP(min_p=0.9, min_keep=4)) == [1, 3]  # none comes back


def test_the_pending_temperature_scales_the_bound() -> None:
    row = f32(0, -1, -2, -3)
    assert kept(row, S.MinP(min_p=0.1)) == [0, 1, 2]  # ln 0.1 = -2.3
    assert kept(row, S.Temperature(temperature=0.5), S.MinP(min_p=0.1)) == [0, 1]
    assert kept(row, S.Temperature(temperature=2.0), S.MinP(min_p=0.1)) == [0, 1, 2, 3]


def test_full_mass_keeps_the_same_set() -> None:
    full = S.MinP(min_p=0.6, mass="full")
    assert kept(P, S.Softmax(), S.TopK(top_k=3), full) == kept(P, S.MinP(min_p=0.6)) == [2, 3]
