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


def test_ties_rank_by_id_also_at_the_boundary() -> None:
    assert kept(f32(5, 5, 5, 5), S.TopK(top_k=2)) == [0, 1]
    assert kept(f32(1, 2, 7, 2, 2), S.TopK(top_k=3)) == [1, 2, 3]
    wide = f32(*[0.0] * 1000)  # several tiles
    wide[[3, 700, 999]] = 1
    assert kept(wide, S.TopK(top_k=5)) == [0, 1, 3, 700, 999]


def test_masked_tokens_neither_count_nor_stay() -> None:
    assert kept(f32(-INF, 1, NAN, 0, -INF), S.TopK(top_k=4)) == [1, 3]
    assert kept(f32(1, INF, 2, INF), S.TopK(top_k=3)) == [1, 3]
