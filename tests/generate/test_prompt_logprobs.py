"""What the model thinks of a prompt, noted as an engine computes it: the bits of ``model.prompt_logprobs``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aleator
from aleator.engine import engine as engine_module
from aleator.engine.options import SubmitOptions
from aleator.engine.prompts import options_of
from aleator.generate.generation import Generation
from aleator.generate.logprobs import top_logprobs
from tests.engine.fake_run import state

PROMPT = "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak."


def asked(
    engine: aleator.Engine, model: aleator.LanguageModel, prompt: str, top: int, **options: Any
) -> Generation:
    request = model.request_maker.requests(
        [prompt], [options_of({"preset": None, "params": None, **options})]
    )[0]
    return engine.start(request, SubmitOptions(), prompt_logprobs=top)


@pytest.mark.parametrize("rows", [None, 8])
def test_it_is_what_scoring_gives(
    model: aleator.LanguageModel, monkeypatch: pytest.MonkeyPatch, rows: int | None
) -> None:
    if rows is not None:  # the prompt is computed in several steps
        monkeypatch.setattr(engine_module, "rows_at_once", lambda width: rows)
    with model.engine(n_seq_max=3) as engine:
        before = engine.submit(PROMPT, max_tokens=30, seed=3)
        made = [asked(engine, model, PROMPT, 3, max_tokens=8, seed=s) for s in range(2)]
        other = engine.submit(PROMPT, max_tokens=8, seed=0)
        for seed, each in enumerate(made):
            assert each.tokens == model.generate(PROMPT, max_tokens=8, seed=seed).tokens
            assert each.prompt_logprobs == model.prompt_logprobs(each.request.tokens, 3)
            assert each.stats.reused_tokens == 0
            assert each.stats.prompt_tokens == len(each.request.tokens)
        assert other.tokens == made[0].tokens
        assert other.prompt_logprobs == []
        assert before.tokens == model.generate(PROMPT, max_tokens=30, seed=3).tokens
        last = engine.submit(PROMPT, max_tokens=8, seed=1)
        assert last.tokens == made[1].tokens
        assert (
            last.stats.reused_tokens == len(made[1].request.tokens) - 1
        )  # what they computed is kept


def test_with_two_prompts_a_grammar_and_guesses(model: aleator.LanguageModel) -> None:
    with model.engine(n_seq_max=4) as engine:
        for options in (
            {"guidance_scale": 1.5, "negative_prompt": "JULIET:"},
            {"regex": "[a-z ]{3,9}"},
            {"spec_type": "ngram", "logprobs": 1},
            {"context_shift": True},
        ):
            made = asked(engine, model, PROMPT, 0, max_tokens=9, seed=1, **options)
            alone = model.generate(PROMPT, max_tokens=9, seed=1, **options)
            assert made.tokens == alone.tokens
            assert made.logprobs == alone.logprobs
            assert made.prompt_logprobs == model.prompt_logprobs(made.request.tokens, 0)


@pytest.mark.parametrize("most", [0, 1, None])
@pytest.mark.parametrize("prompt", ["r", "ro", "romeo"])
def test_a_completion_of_no_tokens_ends_with_its_prompt(prompt: str, most: int | None) -> None:
    """Row by row; what comes after the last token of the prompt is not of the prompt."""
    made = state(prompt, max_tokens=most).completion
    assert (made.done, made.prompt_logprobs) == (most == 0, None)
    rows = np.random.default_rng(1).normal(0, 3, (len(prompt) + 1, 30)).astype(np.float32)
    made.feed_prompt(rows[0])  # nobody has asked
    assert made.prompt_logprobs is None
    made.want_prompt(2)
    wanted: list[Any] = [None]
    assert made.done is (most == 0 and len(prompt) == 1)
    for i, row in enumerate(rows):
        if i < len(prompt) - 1:
            assert not made.done
            wanted.append(top_logprobs(row, ord(prompt[i + 1]) - 0x61, 2, made.token_bytes))
        made.feed_prompt(row)
        assert made.prompt_logprobs == wanted
    assert (made.done, made.stop_reason) == (most == 0, "length" if most == 0 else None)
