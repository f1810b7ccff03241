from __future__ import annotations

import numpy as np
import pytest

from aleator import samplers as S
from aleator.core.contract import Purpose
from aleator.core.errors import ParameterError
from aleator.core.philox import stream, uniform64
from tests.samplers.steps import INF, NAN, SHARES, applied, draws, f32, follows_shares, logs


def test_inverse_walks_the_mass_in_id_order() -> None:
    row = f32(*[0.0] * 8)  # each an eighth: the token is the top three bits
    for seed in range(40):
        u = uniform64(seed, 0, 0, stream(Purpose.DIST))
        assert applied(row, S.Dist(seed)).selected == u >> 61


def test_the_key_is_seed_position_ordinal_and_completion() -> None:
    row = f32(*[0.0] * 1024)
    key = {"seed": 5, "position": 7, "completion": 3}
    chain = S.SamplerChain([S.Dist()], seed=key["seed"], completion=key["completion"])
    chain.position = key["position"]
    u = uniform64(key["seed"], 0, key["position"], stream(Purpose.DIST, 0, key["completion"]))
    assert chain.sample(row) == u >> 54
    assert S.SamplerChain([S.Dist(5)], seed=99).sample(row) == draws(row, S.Dist(), n=1, seed=5)[0]


def test_masked_and_weightless_tokens_are_never_drawn() -> None:
    row = f32(-INF, 0, NAN, -200, 0)  # e^-200 is far below 2^-41
    for draw in ("inverse", "gumbel"):
        assert set(draws(row, S.Dist(draw=draw), n=200)) == {1, 4}


@pytest.mark.parametrize("draw", ["inverse", "gumbel"])
def test_draws_follow_the_probabilities(draw: str) -> None:
    assert follows_shares(draws(logs(SHARES), S.Dist(draw=draw), n=40_000, seed=99))


@pytest.mark.parametrize("n", [1, 15, 16, 17, 255, 256, 257, 5000])
@pytest.mark.parametrize("spread", [0.01, 1, 20])
def test_the_race_is_the_reference_on_long_rows(n: int, spread: float) -> None:
    row = (np.random.default_rng(n).normal(size=n) * spread).astype(np.float32)
    for seed in range(4):
        applied(row, S.Dist(draw="gumbel"), seed=seed)


@pytest.mark.parametrize(
    ("seed", "likely", "other", "logit"),
    [(15, 274_183, 16_139, -0.08187539875507355), (8, 724_308, 806_468, -0.6853650212287903)],
)
def test_equal_times_in_the_race_go_to_the_lower_id(
    seed: int, likely: int, other: int, logit: float
) -> None:
    """Found by search: E of the two tokens is in the proportion of their weights."""
    row = np.full(806_469, -INF, np.float32)
    row[likely], row[other] = 0, logit
    for samplers in ([], [S.TopK(2)]):
        found = applied(row, *samplers, S.Dist(draw="gumbel"), seed=seed)
        assert found.selected == min(likely, other)


def test_in_the_race_removing_losers_does_not_change_the_winner() -> None:
    row = np.random.default_rng(4).normal(size=300).astype(np.float32)
    race = S.Dist(draw="gumbel")
    tokens = draws(row, race, n=30)
    for step, token in enumerate(tokens):
        allowed = S.TokenMask({token, *range(step, 300, 3)})
        chain = S.SamplerChain([allowed, race], seed=1)
        chain.position = step
        assert chain.sample(row) == token
    assert len(set(tokens)) > 20


def test_akunus_draw_is_its_formula() -> None:
    def pcg(state: int) -> float:
        state = (state * 747796405 + 2891336453) % 2**32
        word = ((state >> ((state >> 28) + 4)) ^ state) * 277803737 % 2**32
        return float(np.float32(word >> 22 ^ word) / np.float32(2**32))

    row = np.random.default_rng(3).normal(size=50).astype(np.float32)
    chain = S.SamplerChain([S.Dist(11, draw="gumbel-pcg")])
    for position in range(20):
        u = np.array([pcg(((position + 11) * 2654435761 + i) % 2**32) for i in range(50)])
        noise = -np.log(-np.log(np.clip(u, 1e-7, 1 - 1e-7)))
        z = (row + noise).astype(np.float16)
        token = chain.sample(row)
        assert z[token] >= z.max() - np.float16(0.01)  # half precision ties and rounds


@pytest.mark.parametrize(
    ("scale", "temperature"), [(1.0, 1.0), (3e-7, 1e-9), (2e-5, 1e-8), (3e4, 1.0)]
)
def test_akunus_draw_rounds_as_float16_does(scale: float, temperature: float) -> None:
    # Few values are left of each row, below 2^-14 and beyond 65,519 too: the first of equal ones wins.
    rng = np.random.default_rng(4)
    samplers = [S.Temperature(temperature), S.Dist(11, draw="gumbel-pcg")]
    wrong, tokens = 0, set()
    for position in range(200):
        row = (rng.normal(size=60) * scale * temperature).astype(np.float32)
        chain = S.SamplerChain(samplers)
        chain.position = position
        reference = S.ReferenceChain(chain)
        reference.step.position = position
        expected = reference.apply(row).selected
        token = chain.sample(row)
        wrong += token != expected
        tokens.add(token)
    assert wrong == 0
    assert len(tokens) > 3


def test_akunus_largest_noise_is_bounded() -> None:
    """The uniform number of this token is 1 in float32, and is taken as 1 - 1e-7: noise of 16, not infinity."""
    row = np.zeros(256, np.float32)
    for z, token in ((22, 3), (0, 157)):
        row[3] = z
        chain = S.SamplerChain([S.Dist(89_919, draw="gumbel-pcg")])
        assert S.ReferenceChain(chain).apply(row).selected == token
        assert chain.sample(row) == token


def test_what_is_no_rule_is_refused() -> None:
    with pytest.raises(ParameterError, match="draw='coin'"):
        S.Dist(draw="coin")
    for draw in ("gumbel", "gumbel-pcg"):
        with pytest.raises(ParameterError, match="draw"):
            S.SamplerChain([S.Dist(1, draw=draw)], numerics="llama.cpp")


def test_the_mersenne_twister_draws_as_akunu_does_on_the_cpu() -> None:
    probabilities = [0.1, 0.4, 0.2, 0.3]  # in order: 1, 3, 2, 0
    words = np.random.RandomState(7).randint(0, 2**32, 200, np.uint32)
    r = words.astype(np.float32) / np.float32(2**32)
    expected = [(1, 3, 2, 0)[int(np.searchsorted([0.4, 0.7, 0.9], x))] for x in r.tolist()]
    assert draws(logs(probabilities), S.Dist(7, draw="mt19937"), n=200) == expected
    assert len(set(expected)) == 4


def test_the_mersenne_twister_goes_back_and_counts_completions() -> None:
    row = f32(*[0.0] * 1000)
    chain = S.SamplerChain([S.Dist(draw="mt19937")], seed=5, completion=2)
    tokens = [chain.sample(row) for _ in range(700)]  # past the generator's first block
    chain.rollback(650)
    assert [chain.sample(row) for _ in range(650)] == tokens[50:]
    assert [chain.clone().sample(row) for _ in range(2)] == [chain.sample(row)] * 2
    assert draws(row, S.Dist(2**32 + 7, draw="mt19937"), n=9) == tokens[:9]
    chain.position = 2**28
    with pytest.raises(ParameterError, match="position"):
        chain.sample(row)
