from __future__ import annotations

import pytest

from aleator import samplers as S
from tests.samplers.steps import INF, NAN, check_warper, f32, kept, kept_by_llama, logs

# Entropy 1.75 bits: surprises 1, 2, 3, 3 lie 0.75, 0.25, 1.25, 1.25 away.
P = logs([0.5, 0.25, 0.125, 0.125])


@pytest.mark.parametrize(
    ("p", "expected"),
    [(0.0, [1]), (0.25, [1]), (0.3, [0, 1]), (0.75, [0, 1]), (0.8, [0, 1, 2]), (0.9, [0, 1, 2, 3]),
     (1.0, [0, 1, 2, 3])],
)  # fmt: skip
def test_the_closest_to_the_entropy_stay(p: float, expected: list[int]) -> None:
    assert kept(P, S.TypicalP(typical_p=p)) == expected


def test_the_cases_of_llama_cpps_own_tests() -> None:
    assert kept_by_llama(logs([0.97, 0.01, 0.01, 0.01]), S.TypicalP(typical_p=0.5)) == [0]
    row = logs([0.4, 0.2, 0.2, 0.2])  # 0.2 is nearest to the entropy
    assert kept(row, S.TypicalP(typical_p=0.5)) == [1, 2, 3]
    assert kept_by_llama(row, S.TypicalP(typical_p=0.5)) == [1, 2, 3]


def test_a_mass_equal_to_the_bound_ends_the_set() -> None:
    row = f32(3, 3, 3, 3)  # four weights of exactly 2^40, all at the same distance
    assert kept(row, S.TypicalP(typical_p=0.5)) == [0, 1]
    assert kept(row, S.TypicalP(typical_p=0.5000001)) == [0, 1, 2]


def test_min_keep_goes_on_in_the_same_order() -> None:
    assert kept(P, S.TypicalP(typical_p=0.1, min_keep=2)) == [0, 1]
    assert kept(P, S.TypicalP(typical_p=0.1, min_keep=3)) == [0, 1, 2]
    assert kept(f32(-INF, 1, NAN, 0), S.TypicalP(typical_p=0.1, min_keep=4)) == [1, 3]


def test_masked_tokens_do_not_enter_the_entropy() -> None:
    masked = logs([0.5, 0.0, 0.25, 0.125, 0.0, 0.125])
    assert kept(masked, S.TypicalP(typical_p=0.25)) == [2]
    assert kept(masked, S.TypicalP(typical_p=0.75)) == [0, 2]


def test_the_best_token_may_go() -> None:
    row = logs([0.4, *[0.6 / 60] * 60])  # entropy 4.5 bits, surprises 1.3 and 6.6
    ids = kept(row, S.TypicalP(typical_p=0.295))
    assert ids == list(range(1, 31))  # 30 of 60 hold 0.3, 29 hold 0.29


def test_a_temperature_moves_the_entropy() -> None:
    cold = S.Temperature(temperature=0.2)
    assert kept(P, cold, S.TypicalP(typical_p=0.5)) == [0]  # weights 1, 1/32, 1/1024, 1/1024
    assert kept(P, S.Temperature(temperature=1e5), S.TypicalP(typical_p=0.9)) == [0, 1, 2, 3]


def test_transformers_agrees() -> None:
    check_warper(
        "TypicalLogitsWarper",
        lambda mass, least: S.TypicalP(typical_p=mass, min_keep=least),
        ((0.2, 1), (0.5, 7), (0.9, 1), (0.95, 3)),
    )
