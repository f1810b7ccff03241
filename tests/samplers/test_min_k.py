from __future__ import annotations

import numpy as np
import pytest

from aleator import samplers as S
from tests.samplers.steps import INF, f32, kept

CLIFF = S.MinK(min_k_tau=0.0)


def test_the_cut_is_at_the_steepest_fall_by_rank() -> None:
    """Falls 0.5, 0.5, 4, 1 at ranks 1 to 4: 0.5, 0.25, 1.333, 0.25."""
    row = f32(4, 10, 9.5, 5, 9)
    assert kept(row, CLIFF) == [1, 2, 4]
    # Falls 2, 3.9, 0.1: 2, 1.95, 0.033
    assert kept(f32(10, 8, 4.1, 4), CLIFF) == [0]
    # Falls 2, 4.5, 0.5: 2, 2.25, 0.167
    assert kept(f32(10, 8, 3.5, 3), CLIFF) == [0, 1]


def test_of_equal_quotients_the_first_counts() -> None:
    assert kept(f32(10, 8, 4, 3), CLIFF) == [0]  # 2 / 1 and 4 / 2
    assert kept(f32(4, 3, 2, 1), CLIFF) == [0]
    assert kept(f32(1, 1, 0), CLIFF) == [0, 1]


@pytest.mark.parametrize(
    ("tau", "n"),
    [(0.0, 1), (0.74, 1), (0.75, 1), (1.49, 1), (1.5, 2), (2.25, 3), (3.0, 4), (9.0, 4)],
)
def test_a_narrow_range_keeps_tau_over_it(tau: float, n: int) -> None:
    row = f32(0.75, 0.5, 0.25, 0)  # range 0.75
    assert kept(row, S.MinK(min_k_tau=tau)) == [*range(n)]


def test_ties_go_by_id_and_equal_logits_stay() -> None:
    assert kept(f32(0, 1, 1, 1, 0), S.MinK(min_k_tau=4.0)) == [0, 1, 2, 3]
    for tau in (0.0, 3.0):
        assert kept(f32(7, 7, 7), S.MinK(min_k_tau=tau)) == [0, 1, 2]
        assert kept(f32(-INF, 7), S.MinK(min_k_tau=tau)) == [1]


def test_what_vllm_says_of_its_own() -> None:
    """Of its proposed min-k (vLLM #48142): the cut is by falls over the range and their rank, so neither the
    temperature nor a shift of the logits moves it, and the likeliest token always stays.
    """
    random = np.random.default_rng(0)
    for _ in range(50):
        row = (random.integers(-4096, 4096, 300) / 512).astype(
            np.float32
        )  # shifts by 2^n are exact
        first = kept(row, CLIFF)
        order = np.sort(row.astype(np.float64))[::-1]
        falls = -np.diff(order) / np.arange(1, 300) / (order[0] - order[-1])
        assert len(first) == int(falls.argmax()) + 1
        assert int(row.argmax()) in first
        assert kept(row + np.float32(64), CLIFF) == first
        for temperature in (0.5, 4.0):
            assert kept(row / np.float32(temperature), CLIFF) == first


def test_a_late_fall_is_found() -> None:
    """Far down the order, past what the kernel lists at first: 5,000 equal tokens, and a fall by 9,000."""
    row = np.r_[np.full(5000, 9000.0), np.zeros(9)].astype(np.float32)
    row[0] = 9001  # 1 / 1 against 9000 / 5000
    assert kept(row, CLIFF) == [*range(5000)]
    row[0] = 9002  # 2 / 1
    assert kept(row, CLIFF) == [0]
