from __future__ import annotations

import pytest

from aleator import samplers as S
from tests.samplers.steps import INF, NAN, check_warper, f32, kept, logs

P = logs([0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize(
    ("epsilon", "expected"),
    [(0, [0, 1, 2, 3]), (0.05, [0, 1, 2, 3]), (0.15, [1, 2, 3]), (0.35, [3]), (1, [3])],
)
def test_what_is_probable_enough_stays(epsilon: float, expected: list[int]) -> None:
    assert kept(P, S.EpsilonCutoff(epsilon_cutoff=epsilon)) == expected


def test_equality_stays() -> None:
    assert kept(f32(0, 0, 0, 0), S.EpsilonCutoff(epsilon_cutoff=0.25)) == [0, 1, 2, 3]


def test_where_nothing_passes_the_best_and_its_ties_stay() -> None:
    assert kept(f32(0, 0, 0, 0), S.EpsilonCutoff(epsilon_cutoff=0.26)) == [0, 1, 2, 3]
    assert kept(f32(1, 2, 2, 1), S.EpsilonCutoff(epsilon_cutoff=0.9)) == [1, 2]


def test_min_keep_takes_ties_of_its_last_along() -> None:
    row = f32(3, 2, 1, 1, 1, 0)
    assert kept(row, S.EpsilonCutoff(epsilon_cutoff=0.9, min_keep=2)) == [0, 1]
    assert kept(row, S.EpsilonCutoff(epsilon_cutoff=0.9, min_keep=3)) == [0, 1, 2, 3, 4]
    assert kept(row, S.EpsilonCutoff(epsilon_cutoff=1e-3, min_keep=3)) == [0, 1, 2, 3, 4, 5]
    assert kept(f32(-INF, 1, NAN, 0), S.EpsilonCutoff(epsilon_cutoff=0.9, min_keep=9)) == [1, 3]


def test_the_pending_temperature_counts() -> None:
    row = f32(0, -1, -2)
    assert kept(row, S.EpsilonCutoff(epsilon_cutoff=0.2)) == [0, 1]
    assert kept(row, S.Temperature(temperature=9), S.EpsilonCutoff(epsilon_cutoff=0.2)) == [0, 1, 2]


def test_transformers_agrees() -> None:
    check_warper(
        "EpsilonLogitsWarper",
        lambda bound, least: S.EpsilonCutoff(epsilon_cutoff=bound, min_keep=least),
    )
