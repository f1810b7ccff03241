from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aleator import samplers as S
from aleator.core.errors import LogitsError, ParameterError
from tests.samplers.steps import Texts, f32

ROW = f32(5, 1, 0, 4)


def test_no_end_before_enough_tokens() -> None:
    chain = S.SamplerChain([S.MinTokens(min_tokens=3, end_tokens=(0, 3, 70)), S.Greedy()])
    chain.accept(2)  # the prompt does not count
    assert [chain.sample(ROW) for _ in range(5)] == [1, 1, 1, 0, 0]
    chain.rollback(4)
    assert [chain.sample(ROW) for _ in range(3)] == [1, 1, 0]
    chain.reset()
    assert chain.clone().sample(ROW) == chain.sample(ROW) == 1


def test_a_new_text_counts_anew() -> None:
    chain = S.SamplerChain([S.MinTokens(min_tokens=2, end_tokens=(0, 3)), S.Greedy()])
    assert [chain.sample(ROW) for _ in range(3)] == [1, 1, 0]
    chain.restart()
    chain.accept(2)
    assert [chain.sample(ROW) for _ in range(3)] == [1, 1, 0]
    chain.rollback(7)  # behind the restart
    assert [chain.sample(ROW) for _ in range(3)] == [1, 1, 0]


def test_params_take_the_ends_of_the_vocabulary() -> None:
    params = S.SamplingParams(min_tokens=2, temperature=0)
    with pytest.raises(ParameterError, match="min_tokens needs the vocabulary"):
        params.chain()
    chain = params.chain(Texts([b""] * 71, frozenset({0, 3, 70})))
    assert [chain.sample(ROW) for _ in range(3)] == [1, 1, 0]
    assert S.SamplingParams(min_new_tokens=4).min_tokens == 4


def test_only_ends_left_is_an_error() -> None:
    chain = S.SamplerChain([S.MinTokens(min_tokens=1, end_tokens=(0, 1)), S.Greedy()])
    with pytest.raises(LogitsError):
        chain.sample(f32(1, 2))


def test_what_cannot_be_is_refused() -> None:
    assert S.MinTokens(min_tokens=5).neutral
    wrong: tuple[Any, ...] = (
        (-1,),
        (1.5,),
        (True,),
        (None,),
        ("1",),
        (2**24,),
        [[1]],
        3,
        None,
        "x",
    )
    for ends in wrong:
        with pytest.raises(ParameterError, match="end_tokens"):
            S.MinTokens(min_tokens=1, end_tokens=ends)
    assert S.MinTokens(min_tokens=1, end_tokens=np.array([3, 1, 3])).end_tokens == (1, 3)  # type: ignore[arg-type]
    assert np.isfinite(ROW).all()
