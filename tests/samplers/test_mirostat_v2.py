from __future__ import annotations

import math

import numpy as np
import pytest

from aleator import samplers as S
from tests.samplers.steps import INF, NAN, applied, average_surprise, f32, logs, mu

# Surprises 1, 2, 3, 4, 4 bits.
P = [0.5, 0.25, 0.125, 0.0625, 0.0625]


@pytest.mark.parametrize(
    ("tau", "expected"), [(0.0, 1), (0.4, 1), (0.6, 1), (1.1, 2), (1.6, 3), (1.9, 3), (2.1, 5), (50.0, 5)]
)  # fmt: skip
def test_tokens_no_more_surprising_than_mu_stay(tau: float, expected: int) -> None:
    left = applied(logs(P), S.MirostatV2(mirostat_tau=tau))  # mu is twice the target
    assert left.ids.tolist() == list(range(expected))


def test_equality_stays() -> None:
    row = f32(*[2.0] * 8)  # each exactly 3 bits
    assert len(applied(row, S.MirostatV2(mirostat_tau=1.5))) == 8
    below = applied(row, S.MirostatV2(mirostat_tau=1.4999))
    assert below.ids.tolist() == [0]  # the first of the ties


def test_it_holds_the_average_surprise() -> None:
    row = (-1.1 * np.log(np.arange(1, 2001, dtype=np.float64))).astype(np.float32)
    assert abs(average_surprise(S.MirostatV2(mirostat_tau=2.5), row) - 2.5) < 0.2


def test_mu_moves_by_the_surprise_among_the_kept() -> None:
    row = logs(P)
    for seed in range(8):
        chain = S.SamplerChain([S.MirostatV2(mirostat_tau=1.1, mirostat_eta=0.25)], seed=seed)
        token = chain.sample(row)  # of the first two, which hold 0.75
        surprise = -math.log2(P[token] / 0.75)
        assert mu(chain) == pytest.approx(2.2 - 0.25 * (surprise - 1.1), abs=1e-6)
        chain.rollback(1)
        assert mu(chain) == 2.2


def test_tokens_that_were_not_drawn_leave_it() -> None:
    row = np.random.default_rng(0).normal(size=300).astype(np.float32) * 3
    plain, fed = (S.SamplerChain([S.MirostatV2()], seed=2) for _ in range(2))
    for token in (1, 2, 3):
        fed.accept(token)
    assert [plain.sample(row) for _ in range(20)] == [fed.sample(row) for _ in range(20)]


def test_masked_tokens_are_no_candidates() -> None:
    row = f32(-INF, 1, NAN, 0)
    chain = S.SamplerChain([S.MirostatV2(mirostat_tau=9.0)], seed=1)
    assert {chain.sample(row) for _ in range(60)} == {1, 3}


def test_where_a_weight_of_one_would_stay_nothing_is_cut() -> None:
    row = f32(0, 0, -100)  # 2^-144: its weight is 0
    assert len(applied(row, S.MirostatV2(mirostat_tau=20.0))) == 2
    assert len(applied(row, S.MirostatV2(mirostat_tau=20.5))) == 3  # just a weight of one
    assert len(applied(row, S.MirostatV2(mirostat_tau=21.0))) == 3
