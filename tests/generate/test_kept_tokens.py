"""What samplers keep for each token, and texts under other chains."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import aleator
from aleator import samplers as S
from aleator.generate.scores import ChainScore, Importance
from aleator.samplers.kept_tokens import KeptRow, KeptTokens

OPTIONS: dict[str, Any] = {"top_k": 20, "top_p": 0.9, "temperature": 0.8, "repetition_penalty": 1.1}


@pytest.fixture(scope="module")
def model() -> aleator.LanguageModel:
    return aleator.load(n_threads=1)


def kept_of(made: aleator.Generation) -> list[KeptTokens]:
    return [each.kept for each in made.logprobs or [] if each.kept is not None]


def test_a_row_by_hand() -> None:
    logits = np.log(np.array([0.4, 0.1, 0.3, 0.2], np.float32))
    row = KeptRow.of(aleator.SamplerChain([S.TopK(top_k=2), S.Dist(seed=1)]), logits)
    assert row.ids.tolist() == [0, 2]
    np.testing.assert_allclose(row.logprobs, np.log([4 / 7, 3 / 7]), atol=1e-6)
    assert row.logprob(1) == -math.inf
    kept = row.with_token(2)
    told = kept.logprob, kept.ids.tolist(), len(kept), kept.mask
    assert told == (row.logprobs[1], [0, 2], 2, b"\x05")


def test_the_chain_stays_as_it_is() -> None:
    rng = np.random.default_rng(0)
    one = aleator.SamplerChain([S.TopP(top_p=0.5), S.Dist(seed=1)])
    other = one.clone()
    for logits in rng.normal(size=(20, 50)).astype(np.float32):
        KeptRow.of(one, logits)
        assert one.sample(logits) == other.sample(logits)


def test_it_is_what_a_device_chain_reports() -> None:
    torch = pytest.importorskip("torch")
    chain = aleator.SamplerChain([S.TopK(top_k=7), S.Temperature(temperature=0.7), S.Dist(seed=1)])
    device = aleator.DeviceChain(chain, 3, 45, logprobs=0, kept=True)
    logits = torch.from_numpy(np.random.default_rng(1).normal(size=(3, 45)).astype(np.float32))
    tokens = device.sample(logits)
    for i, token in enumerate(tokens.tolist()):
        kept = KeptRow.of(chain, logits[i].numpy()).with_token(token)
        assert kept.logprob == device.report.kept_logprobs[i]
        assert kept.mask == device.report.kept[i].numpy().tobytes()[: len(kept.mask)]


def test_tokens_and_logprobs_are_those_without(model: aleator.LanguageModel) -> None:
    plain = model.generate("ROMEO:", max_tokens=20, seed=3, logprobs=1, **OPTIONS)
    with model.engine(n_seq_max=2) as engine:
        other = engine.submit("JULIET:", max_tokens=20, seed=3)
        made = engine.submit("ROMEO:", max_tokens=20, seed=3, logprobs=1, kept=True, **OPTIONS)
        assert made.tokens == plain.tokens
        other.cancel()
    assert len(kept_of(made)) == 20
    for token, kept, entry in zip(made.tokens, kept_of(made), plain.logprobs or [], strict=True):
        assert token in kept.ids
        assert 1 <= len(kept) <= 20
        assert kept.logprob <= 0
        assert entry.kept is None


def test_a_text_under_its_own_chain_has_ratio_1(model: aleator.LanguageModel) -> None:
    params = aleator.SamplingParams(seed=3, **OPTIONS)
    made = model.generate("ROMEO:", max_tokens=20, params=params, logprobs=0, kept=True)
    found = model.importance("ROMEO:", made.tokens, params, params)
    assert found.ratios == (1.0,) * 20
    assert found.ratio == 1.0
    assert found.behaviour.kept == tuple(kept_of(made))
    assert found.behaviour.logprobs == tuple(each.chosen.logprob for each in made.logprobs or ())


def test_ratios_under_another_chain(model: aleator.LanguageModel) -> None:
    params = aleator.SamplingParams(temperature=1.0, seed=3)
    narrow = params.replace(top_k=5)
    made = model.generate("ROMEO:", max_tokens=20, params=params, logprobs=0, kept=True)
    found = model.importance("ROMEO:", made.tokens, params, narrow)
    kept = [token in each.ids for token, each in zip(made.tokens, found.target.kept, strict=True)]
    assert 0 < sum(kept) < 20
    for ratio, there in zip(found.ratios, kept, strict=True):
        assert (ratio > 1) == there
        assert (ratio == 0) == (not there)
    assert found.ratio == 0
    assert found.target.logprob == -math.inf
    np.testing.assert_allclose(
        [each.logprob for each in found.behaviour.kept], found.behaviour.logprobs, atol=1e-6
    )


def test_ratios_of_texts_that_a_chain_cannot_draw() -> None:
    def score(*logprobs: float) -> ChainScore:
        return ChainScore((), (), tuple(KeptTokens(each, b"") for each in logprobs))

    never = -math.inf
    found = Importance(score(-1.0, never, never), score(-1.0, -2.0, never))
    assert found.ratios == (1.0, math.inf, 0.0)
    assert found.ratio == 0.0
    assert Importance(score(-400.0, -400.0), score(0.0, 0.0)).ratio == math.inf


def test_what_cannot_be_asked(model: aleator.LanguageModel) -> None:
    with pytest.raises(aleator.ParameterError, match="kept=True: ask for logprobs"):
        model.generate("x", kept=True)
    with pytest.raises(aleator.ParameterError, match="numerics='portable'"):
        model.generate("x", kept=True, logprobs=0, numerics="llama.cpp")
    with pytest.raises(aleator.ParameterError, match="mirostat_v2 adapts"):
        model.importance("x", "y", aleator.SamplingParams(), aleator.SamplingParams(mirostat=2))
    with pytest.raises(aleator.ParameterError, match=r"kept: numerics='llama\.cpp' draws"):
        KeptRow.of(
            aleator.SamplerChain([S.Dist(seed=1)], numerics="llama.cpp"), np.zeros(3, np.float32)
        )
