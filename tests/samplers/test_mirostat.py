from __future__ import annotations

import math

import numpy as np
import pytest

from aleator import samplers as S
from tests.samplers.steps import INF, NAN, Row, applied, average_surprise, f32, logs, mu

RANKS = np.arange(1, 2001, dtype=np.float64)


def zipf(exponent: float) -> Row:
    return (-exponent * np.log(RANKS)).astype(np.float32)


@pytest.mark.parametrize("exponent", [1.1, 1.4])
@pytest.mark.parametrize("tau", [2.0, 3.0])
def test_as_many_stay_as_the_papers_equation_says(exponent: float, tau: float) -> None:
    # On a Zipf row the estimate of the exponent is exact; mu starts at twice the target.
    epsilon = exponent - 1
    bound = epsilon * 2 ** (2 * tau) / (1 - 2000**-epsilon)
    k = bound ** (1 / exponent)
    left = applied(zipf(exponent), S.Mirostat(mirostat_tau=tau))
    assert len(left) == pytest.approx(k, abs=1.01)
    assert left.ids.tolist() == list(range(len(left)))


def test_it_holds_the_average_surprise() -> None:
    row = zipf(1.1)
    assert abs(average_surprise(S.Mirostat(mirostat_tau=2.5), row) - 2.5) < 0.2


def test_mu_moves_by_the_surprise_of_the_token_that_was_drawn() -> None:
    row = logs([0.5, 0.25, 0.125, 0.125])
    chain = S.SamplerChain([S.Mirostat(mirostat_tau=2.0, mirostat_eta=0.5)], seed=3)
    assert mu(chain) == 4
    for token in (0, 1, 2):
        chain.accept(token)
    assert mu(chain) == 4
    candidates = S.Candidates(row)
    chain.apply(candidates)
    kept = candidates.ids.tolist()
    token = chain.sample(row)
    surprise = math.log2(sum([0.5, 0.25, 0.125, 0.125][i] for i in kept)) + (
        token + 1 - (token == 3)
    )
    assert mu(chain) == pytest.approx(4 - 0.5 * (surprise - 2), abs=1e-6)
    chain.rollback(1)
    assert mu(chain) == 4


def test_a_flat_row_is_not_cut() -> None:
    assert len(applied(f32(*[1.0] * 64), S.Mirostat(mirostat_tau=2.0))) == 64
    assert len(applied(f32(*[1.0] * 64), S.Mirostat(mirostat_tau=1000.0))) == 64


def test_a_target_of_zero_leaves_the_first() -> None:
    assert applied(zipf(1.3), S.Mirostat(mirostat_tau=0.0)).ids.tolist() == [0]
    tied = f32(0, 5, 5, *[-3 * math.log(i) for i in range(1, 60)])
    assert applied(tied, S.Mirostat(mirostat_tau=0.0)).ids.tolist() == [1]  # ties: the lowest id


def test_masked_tokens_are_no_candidates() -> None:
    row = f32(-INF, 1, NAN, 0, 0.5)
    chain = S.SamplerChain([S.Mirostat(mirostat_tau=9.0)], seed=1)
    assert {chain.sample(row) for _ in range(100)} == {1, 3, 4}
    assert applied(f32(-INF, 7), S.Mirostat()).selected == 1


@pytest.mark.parametrize("n", [1, 2, 3, 100, 2000])
@pytest.mark.parametrize(
    "exponent", [1.0, 1 + 2**-19, 1 - 2**-19, 1 + 2**-22, 0.5, 2**-9, 2**-11, 2**-14, 4.0, 30.0]
)
def test_the_equation_holds_up_to_its_poles(exponent: float, n: int) -> None:
    """At an exponent of 1 the sum is a logarithm, and at one of 0 the row is flat."""
    row = zipf(exponent)[:n]
    for tau in (0.5, 3.0, 9.0, 100.0):
        left = applied(row, S.Mirostat(mirostat_tau=tau))
        assert left.ids.tolist() == list(range(len(left)))
        if exponent == 1.0 and n == 2000:
            assert len(left) == pytest.approx(min(n, 2 ** (2 * tau) / math.log(n)), abs=1.01)
        if exponent < 2**-10:
            assert len(left) == n


@pytest.mark.parametrize("m", [2, 3, 50])
def test_the_exponent_is_that_of_the_first_candidates(m: int) -> None:
    rest = np.linspace(-20, -40, 40).astype(np.float32)
    row = np.concatenate([zipf(1.3)[:50], rest])
    cut = applied(row, S.Mirostat(mirostat_tau=2.0, mirostat_m=m))
    assert len(cut) == len(applied(zipf(1.3)[:90], S.Mirostat(mirostat_tau=2.0)))


@pytest.mark.parametrize("tau", [0.0, 3.0, 100.0])
def test_tokens_that_weigh_nothing_go(tau: float) -> None:
    """Without a second weight there is no exponent: the best token stays, whatever the target."""
    assert applied(f32(-300, 5, -300), S.Mirostat(mirostat_tau=tau)).ids.tolist() == [1]
    assert applied(f32(7), S.Mirostat(mirostat_tau=tau)).ids.tolist() == [0]
