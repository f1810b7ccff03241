from __future__ import annotations

import math

import pytest

from aleator import samplers as S
from aleator.core.errors import ParameterError
from tests.samplers.steps import INF, NAN, f32, kept, kept_by_llama, logs

P = logs([0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        (0.0, [3]), (0.39, [3]), (0.41, [2, 3]), (0.6, [2, 3]), (0.8, [1, 2, 3]), (0.91, [0, 1, 2, 3]),
        (1.0, [0, 1, 2, 3]),
    ],
)  # fmt: skip
def test_the_shortest_prefix_that_reaches_p_stays(p: float, expected: list[int]) -> None:
    assert kept(P, S.TopP(top_p=p)) == kept_by_llama(P, S.TopP(top_p=p)) == expected


@pytest.mark.parametrize(
    ("p", "expected"), [(0.25, [0]), (math.nextafter(0.25, 1), [0]), (0.2500001, [0, 1]), (0.5, [0, 1])]
)  # fmt: skip
def test_a_mass_equal_to_the_bound_ends_the_prefix(p: float, expected: list[int]) -> None:
    # Four weights of exactly 2^40; what float32 rounds to 0.25 is 0.25.
    assert kept(f32(3, 3, 3, 3), S.TopP(top_p=p)) == expected


def test_min_keep() -> None:
    assert kept(P, S.TopP(top_p=0.0, min_keep=3)) == [1, 2, 3]
    assert kept_by_llama(P, S.TopP(top_p=0.0, min_keep=3)) == [1, 2, 3]
    assert kept(P, S.TopP(top_p=0.9, min_keep=1)) == [1, 2, 3]
    assert kept(f32(-INF, 1, NAN, 0), S.TopP(top_p=0.1, min_keep=4)) == [1, 3]


def test_masked_tokens_have_no_mass() -> None:
    assert kept(logs([0.1, 0.2, 0.0, 0.7]), S.TopP(top_p=0.7000001)) == [1, 3]
    assert kept(f32(INF, 2, INF), S.TopP(top_p=0.6)) == [0, 2]


def test_a_temperature_before_it_flattens_the_mass() -> None:
    hot = S.Temperature(temperature=100.0)
    assert kept(P, hot, S.TopP(top_p=0.74)) == [1, 2, 3]  # nearly equal: a quarter each
    assert kept(P, S.Temperature(temperature=0.1), S.TopP(top_p=0.74)) == [3]


ROW = logs([0.4, 0.3, 0.2, 0.1])


def test_full_mass_counts_what_was_cut_before() -> None:
    cut = (S.Softmax(), S.TopK(top_k=3))
    assert kept(ROW, *cut, S.TopP(top_p=0.7, mass="full")) == [0, 1]
    assert kept(ROW, S.TopK(top_k=3), S.TopP(top_p=0.75)) == [0, 1]
    assert kept(ROW, *cut, S.TopP(top_p=0.75, mass="full")) == [0, 1, 2]
    assert kept(ROW, *cut, S.TopP(top_p=0.95, mass="full")) == [0, 1, 2]  # cannot be reached


def test_full_mass_needs_a_softmax() -> None:
    full = S.TopP(top_p=0.7, mass="full")
    for before in ([], [S.Softmax(), S.Temperature(temperature=0.5)]):
        with pytest.raises(ParameterError, match="Softmax before it"):
            kept(ROW, *before, full)
