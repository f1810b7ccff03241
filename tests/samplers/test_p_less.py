from __future__ import annotations

import numpy as np
import pytest

from aleator import samplers as S
from tests.samplers.steps import INF, NAN, f32, kept, logs

ON, NORMALIZED = S.PLess(p_less="on"), S.PLess(p_less="normalized")


def test_tokens_stay_that_reach_the_sum_of_squares() -> None:
    """0.25 + 0.09 + 0.04 = 0.38; normalised (3 * 0.38 - 1) / 2 = 0.07."""
    row = logs([0.5, 0.3, 0.2])
    assert kept(row, ON) == [0]
    assert kept(row, NORMALIZED) == [0, 1, 2]
    # 0.16 + 0.09 + 0.04 + 0.01 = 0.3 less a little; normalised (4 * 0.3 - 1) / 3 = 0.0667
    assert kept(logs([0.4, 0.3001, 0.1999, 0.1]), ON) == [0, 1]
    # 0.49 + 0.04 + 0.0064 + 0.0004 = 0.5368; normalised (4 * 0.5368 - 1) / 3 = 0.3824
    assert kept(logs([0.7, 0.2, 0.08, 0.02]), NORMALIZED) == [0]
    # 0.2025 + 0.16 + 0.01 + 0.0025 = 0.375; normalised (4 * 0.375 - 1) / 3 = 0.1667
    assert kept(logs([0.45, 0.4, 0.1, 0.05]), ON) == [0, 1]
    # 0.09 + 0.0625 + 0.0625 + 0.04 = 0.255; normalised 0.0067
    assert kept(logs([0.3, 0.25, 0.25, 0.2]), ON) == [0]
    assert kept(logs([0.3, 0.25, 0.25, 0.2]), NORMALIZED) == [0, 1, 2, 3]


def test_equality_stays() -> None:
    """Weights 2^40 and 2^39, twice: Z = 2^41, squares 1.5 * 2^80, bound 3/4 * 2^40."""
    half = f32(0, -np.log(2), -np.log(2))
    assert kept(half, ON) == [0]
    assert kept(half, NORMALIZED) == [0, 1, 2]  # (3 * 3/4 - 2) / 2 = 1/8
    for n in (1, 2, 3, 7, 1000):  # equally likely tokens stay, whatever their number
        assert kept(np.zeros(n, np.float32), ON) == [*range(n)]
        assert kept(np.zeros(n, np.float32), NORMALIZED) == [*range(n)]


@pytest.mark.parametrize("temperature", [0.567, 1.0, 2.345])
@pytest.mark.parametrize("n", [3456, 6789, 12345])
def test_what_vllm_tests_ask(n: int, temperature: float) -> None:
    """Of its proposed p-less (vLLM #45288): uniform rows stay whole, whatever temperature and vocabulary."""
    for logit in (0.0, -7.25, 3e5):
        row = np.full(n, logit, np.float32)
        assert kept(row, S.Temperature(temperature=temperature), ON) == [*range(n)]


def test_a_certain_token_is_alone() -> None:
    for sampler in (ON, NORMALIZED):
        assert kept(f32(50, 0, 0), sampler) == [0]
        assert kept(f32(7), sampler) == [0]
        assert kept(f32(INF, 1, INF), sampler) == [0, 2]
        assert kept(f32(0, -200, -200), S.Temperature(temperature=0.5), sampler) == [0]


def test_masked_tokens_do_not_count() -> None:
    row = logs([0.45, 0.4, 0.1, 0.05])
    for sampler in (ON, NORMALIZED):
        few = kept(row, sampler)
        assert kept(np.append(row, f32(-INF, NAN, *[-INF] * 90)), sampler) == few
    assert kept(f32(-INF, 1, NAN, 1), NORMALIZED) == [1, 3]


def test_a_temperature_before_it_counts() -> None:
    row = logs([0.5, 0.3, 0.2])
    assert kept(row, S.Temperature(temperature=9.0), ON) == [0]
    assert kept(row, S.Temperature(temperature=9.0), NORMALIZED) == [0, 1, 2]
    # at 2: 0.490, 0.262, 0.166, 0.083; squares 0.343, normalised 0.124
    assert kept(logs([0.7, 0.2, 0.08, 0.02]), S.Temperature(temperature=2.0), NORMALIZED) == [
        0,
        1,
        2,
    ]


@pytest.mark.parametrize("n", [2, 100, 4097])
def test_the_authors_formula_in_float64(n: int) -> None:
    for seed in range(20):
        row = (3 * np.random.default_rng([n, seed]).normal(size=n)).astype(np.float32)
        p = np.exp(row.astype(np.float64) - row.max())
        p /= p.sum()
        bound = float((p * p).sum())
        for sampler, least in ((ON, bound), (NORMALIZED, (n * bound - 1) / (n - 1))):
            assert np.abs(p - least).min() > 1e-6 * least  # none is near enough to be doubtful
            assert kept(row, sampler) == np.flatnonzero(p >= least).tolist()
