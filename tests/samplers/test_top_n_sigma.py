from __future__ import annotations

import math

import numpy as np
import pytest

from aleator import samplers as S
from tests.samplers.steps import INF, NAN, f32, kept, kept_by_llama

ROW = f32(0, 1, 2, 3, 4)  # deviation sqrt(2)


@pytest.mark.parametrize(
    ("n", "expected"),
    [(0.5, [4]), (0.7, [4]), (0.71, [3, 4]), (1.0, [3, 4]), (1.5, [2, 3, 4]), (2.2, [1, 2, 3, 4]),
     (3.0, [*range(5)])],
)  # fmt: skip
def test_logits_within_n_deviations_stay(n: float, expected: list[int]) -> None:
    assert kept(ROW, S.TopNSigma(top_n_sigma=n)) == expected
    assert kept_by_llama(ROW, S.TopNSigma(top_n_sigma=n)) == expected


def test_equality_stays() -> None:
    row = f32(0, 0, 2, 2)  # deviation exactly 1
    assert kept(row, S.TopNSigma(top_n_sigma=2.0)) == [0, 1, 2, 3]
    below = float(np.nextafter(np.float32(2), np.float32(0)))
    assert kept(row, S.TopNSigma(top_n_sigma=below)) == [2, 3]


def test_masked_tokens_do_not_enter_the_deviation() -> None:
    masked = f32(0, -INF, 1, 2, NAN, 3, 4)
    assert kept(masked, S.TopNSigma(top_n_sigma=1.0)) == [5, 6]
    assert kept(f32(INF, 1, INF), S.TopNSigma(top_n_sigma=1.0)) == [0, 2]


def test_equal_logits_and_a_single_one_stay() -> None:
    assert kept(f32(7, 7, 7), S.TopNSigma(top_n_sigma=0.001)) == [0, 1, 2]
    assert kept(f32(-INF, 7), S.TopNSigma(top_n_sigma=0.001)) == [1]


def test_far_logits_count_as_256_below() -> None:
    row = f32(0, -2, -256)
    far = f32(0, -2, -1e30)
    for n in (0.01, 0.02, 1.0, 2.13, 2.14, 50.0):
        assert (
            kept(far, S.TopNSigma(top_n_sigma=n))[:2] == kept(row, S.TopNSigma(top_n_sigma=n))[:2]
        )
    deviation = math.sqrt((4 + 256**2) / 3 - (258 / 3) ** 2)
    assert 2 / deviation == pytest.approx(0.0166, abs=1e-4)
    assert kept(far, S.TopNSigma(top_n_sigma=0.0167)) == [0, 1]
    assert kept(far, S.TopNSigma(top_n_sigma=0.0165)) == [0]
