"""Stochastic beams: a sample without replacement, whose noise is that of each token."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

import aleator
from aleator import LanguageModel, SamplingParams
from aleator.core.philox import stream, uniform64
from aleator.generate.beams import follower, gumbel, with_maximum
from tests.generate.test_beams import PROMPT, ends_of, probabilities, search_in


def noise(key: int, token: int, position: int = 0) -> float:
    bits = uniform64(key, token, position, stream(aleator.core.contract.Purpose.GUMBEL))
    return -math.log(-math.log(((bits >> 12) + 0.5) * 2.0**-52))


def leaves(
    model: LanguageModel, prompt: tuple[int, ...], depth: int, seed: int, **sampling: Any
) -> list[tuple[float, float, tuple[int, ...]]]:
    """All texts of a length: (noisy log-probability, log-probability, tokens), the largest first."""
    key = follower(seed)
    level = [(noise(key, 0, 1), 0.0, (), key)]
    for _ in range(depth):
        below: list[Any] = []
        for order, total, made, key in level:
            rest = list(probabilities(model, prompt, made, SamplingParams(**sampling)))
            drawn = [total + logprob + noise(key, token) for token, logprob in rest]
            largest = max(drawn)
            for (token, logprob), g in zip(rest, drawn, strict=True):
                # The paper's form, which is exact enough for so few texts.
                exact = -math.log(math.exp(-order) - math.exp(-largest) + math.exp(-g))
                below.append((exact, total + logprob, (*made, token), follower(key, token)))
        level = below
    return sorted(((o, t, m) for o, t, m, _ in level), reverse=True)


def test_stochastic_beams_are_the_largest_leaves(model: LanguageModel) -> None:
    prompt = model.prompt_tokens(PROMPT)
    for seed in range(4):
        whole = leaves(model, prompt, 3, seed, top_k=3)
        for n in (1, 3, 8):
            found = model.beams(
                PROMPT, num_beams=n, num_return_sequences=n, max_tokens=3, top_k=3,
                stochastic=True, seed=seed,
            )  # fmt: skip
            assert [each.tokens for each in found] == [made for _, _, made in whole[:n]]
            for each, (order, total, _) in zip(found, whole, strict=False):
                assert math.isclose(each.score, order, rel_tol=1e-9, abs_tol=1e-9)
                assert math.isclose(each.logprob, total, rel_tol=1e-12)
                assert each.seed == seed


def test_more_beams_go_on_with_the_same_sample(model: LanguageModel) -> None:
    few, many = (
        model.beams(
            PROMPT, num_beams=n, num_return_sequences=n, max_tokens=10, stochastic=True, seed=5,
            stop_token_ids=ends_of(model),
        )
        for n in (3, 7)
    )  # fmt: skip
    assert few == many[:3]
    assert len({each.tokens for each in many}) == 7
    other = model.beams(PROMPT, num_beams=3, max_tokens=10, stochastic=True, seed=6)
    assert other[0].tokens != few[0].tokens


def test_stochastic_beams_are_drawn_without_replacement(model: LanguageModel) -> None:
    """First and second text have the probabilities of an urn, at a level that chance leaves once in 10^6."""
    params, prompt, n = SamplingParams(top_k=2, temperature=2.0), model.prompt_tokens(PROMPT), 1500
    p: dict[tuple[int, ...], float] = {}
    for token, first in probabilities(model, prompt, (), params):
        for below, second in probabilities(model, prompt, (token,), params):
            p[token, below] = math.exp(first + second)
    context = model.context(n_ctx=64, n_seq_max=2)
    counts: Counter[Any] = Counter()
    for seed in range(n):
        search = search_in(
            context, model, num_beams=2, num_return_sequences=2, stochastic=True, max_tokens=2,
            params=params.replace(seed=seed),
        )  # fmt: skip
        one, two = search.run(context, context.cache)
        counts[one.tokens, two.tokens] += 1
    expected = {(a, b): n * p[a] * p[b] / (1 - p[a]) for a in p for b in p if a != b}
    assert set(counts) <= set(expected)
    assert math.isclose(sum(expected.values()), n)
    chi = sum((counts[each] - e) ** 2 / e for each, e in expected.items())
    assert chi < 60  # 11 degrees of freedom: above 60 once in 10^8


def test_noise_of_a_row_is_that_of_each_token() -> None:
    ids = np.array([0, 7, 2**24 - 1], np.int32)
    assert gumbel(2**63 + 5, ids) == pytest.approx(
        [noise(2**63 + 5, int(i)) for i in ids], rel=1e-14
    )
    spread = gumbel(1, np.arange(100_000))
    assert np.isfinite(spread).all()
    assert abs(spread.mean() - 0.5772) < 0.02
    assert abs(spread.var() - math.pi**2 / 6) < 0.05


def test_a_maximum_is_kept_and_far_values_stay_finite() -> None:
    made = with_maximum(np.array([-1e3, 3.0, 2.999999, -20.0, 3.0 - 1e-12]), 0.5)
    assert made.max() == made[1] == 0.5
    assert np.isfinite(made).all()
    assert (np.argsort(made)[::-1] == [1, 4, 2, 3, 0]).all()
