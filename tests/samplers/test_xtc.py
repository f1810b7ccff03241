from __future__ import annotations

import math

import pytest

from aleator import samplers as S
from tests.samplers.steps import INF, NAN, Row, f32, kept, kept_by_llama, logs

P = logs([0.1, 0.2, 0.3, 0.4])


def xtc(threshold: float, probability: float = 1.0, **more: int) -> S.XTC:
    return S.XTC(xtc_probability=probability, xtc_threshold=threshold, **more)


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [(0.0, [0]), (0.09, [0]), (0.15, [0, 1]), (0.19, [0, 1]), (0.29, [0, 1, 2]), (0.35, [0, 1, 2, 3]),
     (0.39, [0, 1, 2, 3])],
)  # fmt: skip
def test_all_of_the_run_but_its_last_go(threshold: float, expected: list[int]) -> None:
    assert kept(P, xtc(threshold)) == kept_by_llama(P, xtc(threshold)) == expected


def test_equality_belongs_to_the_run_and_ties_go_by_id() -> None:
    row = f32(1, 1, 1, 1)  # each exactly a quarter
    assert kept(row, xtc(0.25)) == [3]  # the highest id is the last of the run
    assert kept(row, xtc(0.2500001)) == [0, 1, 2, 3]
    assert kept(f32(1, 1), xtc(0.5)) == [1]


def test_one_is_off() -> None:
    assert xtc(1.0).neutral
    assert not xtc(0.5).neutral
    assert xtc(0.1, probability=0.0).neutral


def test_min_keep_is_all_or_nothing() -> None:
    assert kept(P, xtc(0.15, min_keep=2)) == [0, 1]
    assert kept(P, xtc(0.15, min_keep=3)) == [0, 1, 2, 3]


def test_masked_tokens_are_no_candidates() -> None:
    row: Row = f32(-INF, math.log(0.1), NAN, math.log(0.2), math.log(0.3), -INF, math.log(0.4))
    assert kept(row, xtc(0.15)) == [1, 3]
    assert kept(row, xtc(0.0)) == [1]
    assert kept(f32(-INF, 3), xtc(0.0)) == [1]


def test_it_fires_with_its_probability() -> None:
    row = logs([0.4, 0.4, 0.2])
    chain = S.SamplerChain([xtc(0.1, probability=0.3)], seed=8)
    fired = 0
    for position in range(10_000):
        chain.position = position
        candidates = S.Candidates(row)
        chain.apply(candidates)
        fired += len(candidates) < 3
    assert abs(fired - 3000) < 4 * math.sqrt(10_000 * 0.3 * 0.7)
