from __future__ import annotations

import numpy as np
import pytest

from aleator import samplers as S
from aleator.core.errors import LogitsError, ParameterError
from tests.samplers.steps import INF, NAN, applied, f32, kept, logits_after


def test_a_bias_is_added_and_rounded_once() -> None:
    z = f32(0.1, 1e8, -3, 5)
    after = logits_after(S.LogitBias({0: 0.2, 1: 1.0, 2: -1e-9}), z)
    assert after == [float(np.float32(0.1) + np.float32(0.2)), 1e8, -3, 5]


def test_infinities_ban_and_force() -> None:
    assert kept(f32(9, 1, 2), S.LogitBias({0: -INF})) == [1, 2]
    assert kept(f32(9, 1, 2, 0), S.LogitBias({3: INF, 1: INF})) == [1, 3]
    for numerics in ("portable", "llama.cpp"):
        chain = S.SamplerChain([S.LogitBias({3: INF}), S.Dist(1)], numerics=numerics)
        assert [chain.sample(f32(9, 1, 2, 0)) for _ in range(5)] == [3] * 5


def test_masked_tokens_stay_masked() -> None:
    assert kept(f32(-INF, 1, NAN), S.LogitBias({0: 5.0, 2: INF})) == [1]


def test_the_boundaries_of_tiles() -> None:
    row = np.zeros(300, np.float32)
    biases = {0: 1.0, 127: 2.0, 128: 3.0, 299: 4.0}
    after = logits_after(S.LogitBias(biases), row)
    assert {i: z for i, z in enumerate(after) if z} == biases


def test_after_a_truncation_only_candidates_change() -> None:
    left = applied(f32(1, 2, 3, 4), S.TopK(top_k=2), S.LogitBias({0: 50.0, 2: 7.0}))
    assert (left.ids.tolist(), left.logits.tolist()) == ([2, 3], [10, 4])


def test_a_pending_temperature_is_applied_first() -> None:
    left = applied(f32(1, 2), S.Temperature(temperature=0.5), S.LogitBias({0: 1.0}))
    assert left.logits.tolist() == [3, 4]


def test_what_cannot_be_is_refused() -> None:
    assert S.LogitBias({}).neutral
    wrong = (
        {-1: 1.0},
        {0: NAN},
        {"a": 1.0},
        [(1, 1.0), (1, 2.0)],
        5,
        {1.5: 2.0},
        {True: 2.0},
        {2**24: 0.0},
    )
    for bad in wrong:
        with pytest.raises(ParameterError, match="logit_bias"):
            S.LogitBias(bad)
    chain = S.SamplerChain([S.LogitBias({4: 1.0}), S.Greedy()])
    with pytest.raises(ParameterError, match="token 4"):
        chain.sample(f32(1, 2, 3, 4))
    assert chain.history == []
    with pytest.raises(LogitsError, match="finite"):
        S.SamplerChain([S.LogitBias({0: -INF, 1: -INF}), S.Greedy()]).sample(f32(1, 2))


class Words:
    """A tokenizer of the words "a" to "j", which are tokens 0 to 9."""

    vocab = None

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        assert not add_special
        assert not parse_special
        return [ord(word) - ord("a") for word in text.split()]


def test_text_stands_for_its_tokens() -> None:
    bias = S.LogitBias({"b d": 2.0, 5: -1.0, "d": 2.0}, tokenizer=Words())
    assert bias.logit_bias == ((1, 2.0), (3, 2.0), (5, -1.0))
    assert bias == S.LogitBias({1: 2, 3: 2, 5: -1})
    mixed: dict[int | str, float] = {"c": -np.inf, 0: 1.0}
    params = S.SamplingParams(logit_bias=mixed)
    assert params.logit_bias == ((0, 1.0), ("c", -np.inf))
    assert params.chain(Words())[0].logit_bias == ((0, 1.0), (2, -np.inf))
    ignoring = params.replace(ignore_eos=True)
    with pytest.raises(ParameterError, match="ignore_eos needs the vocabulary"):
        ignoring.chain()


def test_text_that_cannot_be_is_refused() -> None:
    with pytest.raises(ParameterError, match="needs a tokenizer"):
        S.SamplingParams(logit_bias={"c": 1.0}).chain()
    with pytest.raises(ParameterError, match=r"token 2 of 'c d' both 1\.0 and 2\.0"):
        S.LogitBias({2: 1.0, "c d": 2.0}, tokenizer=Words())
    for bad in ({"": 1.0}, [("c", 1.0), ("c", 1.0)], {"c": np.nan}):
        with pytest.raises(ParameterError, match="logit_bias"):
            S.SamplingParams(logit_bias=bad)
    assert S.parse_bias('" the+1"-2') == (" the+1", -2.0)
    for text in ('"a', '"a"', '"a"x', '"a"2'):
        with pytest.raises(ParameterError, match="double quotes"):
            S.parse_bias(text)
