from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from aleator import samplers as S
from aleator.core.errors import LogitsError, ParameterError
from tests.samplers.steps import INF, NAN, applied, f32, kept

ALLOWED = [0, 5, 31, 32, 40]


def forms() -> list[object]:
    flags = np.zeros(50, np.bool_)
    flags[ALLOWED] = True
    arrays = [np.array(ALLOWED, dtype) for dtype in (np.int64, np.int32, np.uint32, np.uint8)]
    return [ALLOWED, set(ALLOWED), range(3, 6), flags, *arrays]


@pytest.mark.parametrize("form", forms(), ids=range(8))
def test_all_forms_name_tokens(form: object) -> None:
    expected = [3, 4, 5] if isinstance(form, range) else ALLOWED
    assert kept(np.zeros(60, np.float32), S.TokenMask(form)) == expected


def test_words_are_asked_for_by_name() -> None:
    words = np.array([1 | 1 << 5 | 1 << 31, 1 | 1 << 8], np.uint32)
    for given in (words, words.view(np.int32)):
        mask = S.TokenMask.of_words(given)
        assert mask == S.TokenMask(ALLOWED) == dataclasses.replace(mask)
        assert kept(np.zeros(60, np.float32), mask) == ALLOWED
    with pytest.raises(ParameterError, match=r"TokenMask\.of_words"):
        S.TokenMask(words)  # their numbers are no token ids
    for bad in (words.astype(np.int64), words.reshape(2, 1), [0.5]):
        with pytest.raises(ParameterError, match="words"):
            S.TokenMask.of_words(bad)


def test_tokens_past_the_end_of_the_mask_are_masked() -> None:
    assert kept(np.zeros(300, np.float32), S.TokenMask([1, 299])) == [1, 299]
    assert kept(np.zeros(300, np.float32), S.TokenMask(np.ones(130, np.bool_))) == [*range(130)]


def test_allowed_tokens_past_the_row_do_no_harm() -> None:
    assert kept(f32(1, 2, 3), S.TokenMask([2, 70, 10**6])) == [2]


def test_masked_tokens_stay_masked() -> None:
    assert kept(f32(-INF, 1, NAN, 2), S.TokenMask([0, 2, 3])) == [3]
    assert kept(f32(1, 2, 3, 4), S.TopK(top_k=2), S.TokenMask([0, 1, 3])) == [3]


@pytest.mark.parametrize("share", [0.05, 0.5, 0.99])
def test_what_is_masked_weighs_nothing(share: float) -> None:
    rng = np.random.default_rng(8)
    row = rng.normal(size=1000).astype(np.float32)
    mask = S.TokenMask(rng.random(1000) < share)
    for before in ([S.Softmax()], [S.TopK(top_k=700), S.Softmax()]):  # the mass was known before
        for seed in range(10):
            applied(row, *before, mask, S.TopP(top_p=0.8), S.Dist(), seed=seed)


def test_what_cannot_be_is_refused() -> None:
    assert S.TokenMask().neutral
    for bad in ([], [[1]], [-1], [0.5], [2**24]):
        with pytest.raises(ParameterError, match="allowed"):
            S.TokenMask(bad)


def test_nothing_left_is_an_error() -> None:
    for mask, row in (([70], np.zeros(60, np.float32)), ([1], f32(3, -INF))):
        chain = S.SamplerChain([S.TokenMask(mask), S.Greedy()])
        with pytest.raises(LogitsError, match="mask"):
            chain.sample(row)
        assert chain.history == []


def test_params_allow_tokens_by_id() -> None:
    row = np.arange(9, dtype=np.float32)
    params = S.SamplingParams(
        allowed_token_ids=np.array([5, 1, 5]), temperature=0, logit_bias={8: INF}
    )
    assert params.allowed_token_ids == (1, 5)
    chain = params.chain()
    assert chain.describe().startswith("logits -> token_mask -> logit_bias -> ")
    assert chain.sample(row) == 5
    assert params.replace(allowed_token_ids=None).chain().sample(row) == 8
    wrong: list[Any] = [[], [-1], "13", [0.5], 3, [2**24]]
    for bad in wrong:
        with pytest.raises(ParameterError, match="allowed_token_ids"):
            S.SamplingParams(allowed_token_ids=bad)
