"""Do tokens come with the probabilities they should, and are separate draws independent?

Every test has fixed seeds, so its outcome never changes.  ALPHA is the chance that a single test of a
perfect sampler would fail for a seed chosen blindly; there are fewer than a hundred of them.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from aleator import samplers as S

ALPHA = 1e-5
DRAWS = 1_000_000


def p_value(statistic: float, freedom: int) -> float:
    """Chance that a chi-square variable is larger (Wilson and Hilferty 1931: close for 5 degrees and more)."""
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return math.erfc(z / math.sqrt(2)) / 2


def assert_fits(counts: NDArray[np.int64], probabilities: NDArray[np.float64]) -> None:
    """Chi-square of counts against probabilities; what is impossible never happens."""
    assert not counts[probabilities == 0].any()
    expected = probabilities * counts.sum()
    used = probabilities > 0
    assert expected[used].min() >= 5
    statistic = ((counts - expected)[used] ** 2 / expected[used]).sum()
    assert p_value(float(statistic), int(used.sum()) - 1) > ALPHA


def assert_independent(first: NDArray[np.int64], second: NDArray[np.int64]) -> None:
    """Chi-square of the table of pairs against the product of its margins."""
    table = np.zeros((int(first.max()) + 1, int(second.max()) + 1))
    np.add.at(table, (first, second), 1)
    expected = np.outer(table.sum(1), table.sum(0)) / len(first)
    assert expected.min() >= 5
    statistic = ((table - expected) ** 2 / expected).sum()
    assert p_value(float(statistic), (table.shape[0] - 1) * (table.shape[1] - 1)) > ALPHA


def tokens(chain: S.SamplerChain, row: NDArray[np.float32], n: int) -> NDArray[np.int64]:
    sample = chain._native.sample  # a third of the time of SamplerChain.sample
    return np.fromiter((sample(row) for _ in range(n)), np.int64, n)


def test_the_p_value_is_that_of_tables() -> None:
    for statistic, freedom, p in ((15.086, 5, 0.01), (29.588, 10, 0.001), (74.919, 49, 0.01)):
        assert p_value(statistic, freedom) == pytest.approx(p, rel=0.1)


@pytest.mark.parametrize("draw", ["inverse", "gumbel"])
def test_a_million_draws_fit_the_exact_probabilities(draw: str) -> None:
    probabilities = np.array([0.25, 0.2, 0.15, 0, 0.12, 0.1, 0.08, 0.06, 0.0396, 0.0004])
    with np.errstate(divide="ignore"):
        row = np.log(probabilities).astype(np.float32)
    weights = np.exp(row.astype(np.float64))
    chain = S.SamplerChain([S.Dist(draw=draw)], seed=20)
    counts = np.bincount(tokens(chain, row, DRAWS), minlength=10)
    assert_fits(counts, weights / weights.sum())


EVEN = np.zeros(16, np.float32)
PAIRS = 60_000


def drawn(
    seed: int, completion: int = 0, draw: str = "inverse", n: int = PAIRS
) -> NDArray[np.int64]:
    """Tokens of a row of 16 equal logits."""
    return tokens(S.SamplerChain([S.Dist(draw=draw)], seed=seed, completion=completion), EVEN, n)


@pytest.mark.parametrize("draw", ["inverse", "gumbel"])
def test_neighbouring_positions_are_independent(draw: str) -> None:
    run = drawn(1, draw=draw, n=2 * PAIRS)
    for lag in (1, 2, 64, 4096):
        assert_independent(run[:-lag], run[lag:])


@pytest.mark.parametrize("draw", ["inverse", "gumbel"])
def test_neighbouring_seeds_and_completions_are_independent(draw: str) -> None:
    run = drawn(7, draw=draw)
    for seed, completion in ((6, 0), (8, 0), (7 + 2**32, 0), (7 + 2**63, 0), (7, 1), (7, 2**19)):
        assert_independent(run, drawn(seed, completion, draw))
    assert_independent(run, drawn(7, draw="gumbel" if draw == "inverse" else "inverse"))


@pytest.mark.parametrize("key", ["seed", "completion"])
def test_first_tokens_of_successive_seeds_and_completions_are_independent(key: str) -> None:
    first = np.array(
        [(drawn(i, n=1) if key == "seed" else drawn(3, i, n=1))[0] for i in range(12_000)]
    )
    assert_fits(np.bincount(first, minlength=16), np.full(16, 1 / 16))
    assert_independent(first[:-1], first[1:])


def kept(chain: S.SamplerChain, row: NDArray[np.float32]) -> tuple[int, int]:
    """How many candidates one step leaves, and the token."""
    candidates = S.Candidates(row)
    chain.apply(candidates)
    token = candidates.selected or 0
    chain.accept(token, generated=True)
    return len(candidates), token


def test_xtcs_coin_says_nothing_about_the_draw() -> None:
    # XTC removes token 8 or nothing.  What is left of u below it falls evenly on tokens 0 to 7 in both cases.
    row = np.log(np.array([1 / 16] * 8 + [0.3, 0.2])).astype(np.float32)
    chain = S.SamplerChain([S.XTC(xtc_probability=0.5, xtc_threshold=0.19), S.Dist()], seed=5)
    steps = [kept(chain, row) for _ in range(PAIRS)]
    coins = np.array([n == 9 for n, token in steps if token < 8], np.int64)
    assert_independent(coins, np.array([token for _, token in steps if token < 8]))
    heads = sum(n == 9 for n, _ in steps)
    assert abs(heads - PAIRS / 2) < 4.5 * math.sqrt(PAIRS) / 2


def coins(ordinal: int) -> NDArray[np.int64]:
    """Four coins of the ``ordinal``-th XTC of a chain as one number, many times."""
    xtc = S.XTC(xtc_probability=0.5, xtc_threshold=0.4)
    chain = S.SamplerChain([*[S.XTC()] * ordinal, xtc], seed=5)
    bits = np.array([kept(chain, EVEN[:2])[0] == 1 for _ in range(PAIRS)]).reshape(-1, 4)
    numbers: NDArray[np.int64] = bits @ np.array([1, 2, 4, 8])
    return numbers


def test_samplers_of_one_kind_have_independent_streams() -> None:
    first, second = coins(0), coins(1)
    for run in (first, second):
        assert_fits(np.bincount(run, minlength=16), np.full(16, 1 / 16))
    assert_independent(first, second)


def test_these_tests_notice_what_they_should() -> None:
    rng = np.random.default_rng(0)
    even = np.full(16, 1 / 16)
    tilted = even + np.linspace(-1, 1, 16) / 16 / 100  # the last token one percent more likely
    assert_fits(rng.multinomial(DRAWS, even), even)
    with pytest.raises(AssertionError):
        assert_fits(rng.multinomial(DRAWS, tilted), even)
    run = rng.integers(16, size=PAIRS)
    again = np.where(rng.random(PAIRS) < 0.05, run, rng.integers(16, size=PAIRS))
    with pytest.raises(AssertionError):
        assert_independent(run, again)
