from __future__ import annotations

import pytest

from aleator import samplers as S
from tests.samplers.steps import INF, NAN, f32, kept, logs

P = logs([0.5, 0.25, 0.125, 0.0625, 0.0625])


@pytest.mark.parametrize(
    ("a", "expected"),
    [(0.0, [*range(5)]), (0.2, [*range(5)]), (0.26, [0, 1, 2]), (0.5, [0, 1, 2]), (0.6, [0, 1]), (1.0, [0, 1])],
)  # fmt: skip
def test_the_bound_is_a_share_of_the_square_of_the_best(a: float, expected: list[int]) -> None:
    assert kept(P, S.TopA(top_a=a)) == expected  # the bound is a / 4; 0.5 and 1 meet it exactly


def test_equality_stays_and_ties_go_together() -> None:
    row = f32(2, 2, 2, 2)  # each a quarter; the bound is a / 16
    assert kept(row, S.TopA(top_a=1.0)) == [0, 1, 2, 3]
    lone = f32(0, -100)  # the second weighs nothing
    assert kept(lone, S.TopA(top_a=1.0)) == [0]


def test_a_confident_row_is_cut_harder_than_a_flat_one() -> None:
    assert kept(logs([0.9, *[0.1 / 7] * 7]), S.TopA(top_a=0.3)) == [0]
    assert len(kept(logs([0.3, *[0.1] * 7]), S.TopA(top_a=0.3))) == 8


def test_masked_tokens_are_no_candidates() -> None:
    assert kept(f32(-INF, 1, NAN, 1), S.TopA(top_a=1.0)) == [1, 3]
    assert kept(f32(3, INF, 3), S.TopA(top_a=1.0)) == [1]


def test_a_temperature_enters_the_weights() -> None:
    row = f32(0, -2)
    assert kept(row, S.TopA(top_a=0.3)) == [0]  # 0.12 against 0.3 * 0.78
    assert kept(row, S.Temperature(temperature=4.0), S.TopA(top_a=0.3)) == [0, 1]
