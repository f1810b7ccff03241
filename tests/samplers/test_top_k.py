from __future__ import annotations

import pytest

from aleator import samplers as S
from tests.samplers.steps import INF, NAN, f32, kept, kept_by_llama, logs

P = logs([0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize(
    ("k", "expected"),
    [(1, [3]), (2, [2, 3]), (3, [1, 2, 3]), (4, [0, 1, 2, 3]), (9, [0, 1, 2, 3]), (2**31 - 1, [0, 1, 2, 3])],
)  # fmt: skip
def test_the_first_k_stay(k: int, expected: list[int]) -> None:
    assert kept(P, S.TopK(top_k=k)) == kept_by_llama(P, S.TopK(top_k=k)) == expected


def test_zero_keeps_all() -> None:
    assert S.TopK(top_k=0).neutral
    assert not S.TopK(top_k=1).neutral
    assert kept(P, S.TopK(top_k=0)) == [0, 1, 2, 3]


def test_ties_rank_by_id_also_at_the_boundary() -> None:
    assert kept(f32(5, 5, 5, 5), S.TopK(top_k=2)) == [0, 1]
    assert kept(f32(1, 2, 7, 2, 2), S.TopK(top_k=3)) == [1, 2, 3]
    wide = f32(*[0.0] * 1000)  # several tiles
    wide[[3, 700, 999]] = 1
    assert kept(wide, S.TopK(top_k=5)) == [0, 1, 3, 700, 999]


def test_masked_tokens_neither_count_nor_stay() -> None:
    assert kept(f32(-INF, 1, NAN, 0, -INF), S.TopK(top_k=4)) == [1, 3]
    assert kept(f32(1, INF, 2, INF), S.TopK(top_k=3)) == [1, 3]


def test_a_temperature_does_not_matter() -> None:
    for temperature in (0.01, 30.0):
        assert kept(P, S.Temperature(temperature=temperature), S.TopK(top_k=2)) == [2, 3]


def test_k_of_many() -> None:
    row = f32(*[(i * 7919) % 5003 for i in range(5003)])  # a permutation
    for k in (1, 40, 127, 128, 129, 700, 5002):
        assert len(kept(row, S.TopK(top_k=k))) == k
        assert min(row[kept(row, S.TopK(top_k=k))]) == 5003 - k
