"""Chains that follow another engine's text end where the text alone would have brought them."""

from __future__ import annotations

import numpy as np
import pytest

from aleator import ParameterError, SamplerChain, SamplingParams
from aleator import samplers as S
from aleator.integrations.follower import Follower, draw_all
from aleator.integrations.settings import row_params, sampling_params

ROWS = np.random.default_rng(5).normal(size=(40, 200)).astype(np.float32) * 3


def mirostat() -> SamplerChain:
    return SamplerChain(
        [S.DRY(dry_multiplier=0.8, dry_sequence_breakers=()), S.MirostatV2()], seed=3
    )


def plain(n: int) -> list[int]:
    chain = mirostat()
    chain.accept_many([7, 8])
    return [chain.sample(row) for row in ROWS[:n]]


def test_a_text_that_goes_on() -> None:
    text = Follower(mirostat(), [7, 8])
    tokens: list[int] = []
    for row in ROWS[:20]:
        text.follow(tokens)
        tokens.append(text.draw(row))
    assert tokens == plain(20)


def test_wrong_guesses_leave_no_trace() -> None:
    """Each step looks at three guesses, as assisted generation does; mirostat adapts to what was drawn."""
    text, tokens = Follower(mirostat(), [7, 8]), list[int]()
    right = plain(24)
    rng = np.random.default_rng(0)
    while len(tokens) < 20:
        n = len(tokens)
        guesses = right[n : n + 3]
        wrong = int(rng.integers(4))
        guesses[wrong:] = [(g + 1) % 200 for g in guesses[wrong:]]
        for i in range(2):  # a draft model draws with the same chain first
            text.follow(tokens + guesses[:i])
            text.draw(ROWS[30 + i])
        drawn = []
        for i in range(4):
            text.follow(tokens + guesses[:i])
            drawn.append(text.draw(ROWS[n + i]))
        good = next((i for i in range(3) if drawn[i] != guesses[i]), 3)
        tokens += drawn[: good + 1]
    assert tokens[:20] == right[:20]


def test_forced_tokens_are_history() -> None:
    text = Follower(SamplerChain([S.Penalties(repetition_penalty=5.0), S.Greedy()]), [1])
    text.follow([4, 4, 9])
    assert text.chain.history == [1, 4, 4, 9]
    assert text.chain.position == 3
    text.follow([4])
    assert text.chain.history == [1, 4]


def test_rows_together_draw_as_alone() -> None:
    seeds = range(8)
    together = [Follower(SamplerChain([S.TopK(top_k=40), S.Dist()], seed=s)) for s in seeds]
    alone = [SamplerChain([S.TopK(top_k=40), S.Dist()], seed=s) for s in seeds]
    assert draw_all(together, ROWS[:8]) == [c.sample(r) for c, r in zip(alone, ROWS, strict=False)]
    assert all(len(text.tokens) == 1 for text in together)


def test_llama_numbers_are_drawn_row_by_row() -> None:
    def chain() -> SamplerChain:
        return SamplerChain([S.TopK(top_k=40), S.Dist()], "llama.cpp", seed=9)

    both = [Follower(chain()), Follower(chain())]
    assert draw_all(both, ROWS[:2]) == [chain().sample(ROWS[0]), chain().sample(ROWS[1])]


def test_settings() -> None:
    assert sampling_params({"preset": "vllm", "top_k": 5}, "vLLM") == SamplingParams.preset(
        "vllm", top_k=5
    )
    assert sampling_params({"top_k": 5}, "vLLM") == SamplingParams(top_k=5)
    assert [p.seed for p in row_params({"top_k": 5}, [1, 2], "vLLM")] == [1, 2]
    for wrong, name in (
        ({"top_q": 1}, "top_q"),
        ({"preset": "x"}, "preset"),
        ({"preset": 3}, "preset"),
        (3, "settings"),
    ):
        with pytest.raises(ParameterError) as error:
            sampling_params(wrong, "vLLM")  # type: ignore[arg-type]
        assert error.value.parameter == name
    with pytest.raises(ParameterError, match="2 seeds for 1"):
        row_params([{}], [1, 2], "vLLM")
