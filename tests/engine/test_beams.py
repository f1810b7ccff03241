"""Beams in an engine: the texts of ``model.beams`` beside other requests, ends, limits, and what is left."""

from __future__ import annotations

import asyncio
import gc
import itertools
import weakref
from pathlib import Path
from typing import Any

import pytest
from make_models import SPECS, write_model

import aleator
from aleator.core.errors import ContextFull, ParameterError
from aleator.generate import Context, beams
from aleator.generate.beam_chain import distribution
from tests.engine.engines import loop_of, wait_until_idle

PROMPT = "ROMEO:\nWhat"
OPTIONS: list[dict[str, Any]] = [
    {"num_beams": 3, "num_return_sequences": 3},
    {"num_beams": 1},
    {"num_beams": 2, "early_stopping": "never", "length_penalty": 0.0, "stop": ["I"]},
    {"num_beams": 3, "num_return_sequences": 3, "regex": "aye|no|never"},
    {"num_beams": 3, "num_return_sequences": 2, "stochastic": True, "seed": 5},
    {"num_beams": 2, "temperature": 0.6, "top_p": 0.8, "repetition_penalty": 1.2},
]


def is_empty(engine: aleator.Engine) -> bool:
    """Whether no sequence holds anything and nothing is reserved."""

    def look(context: Context, seq: int) -> bool:
        return all(context.cache.seq_pos_max(each) < 0 for each in range(context.n_seq_max))

    return engine.visit(look).result(timeout=30) and engine.stats.cells_reserved == 0


def test_they_are_those_of_the_model(model: aleator.LanguageModel, engine: aleator.Engine) -> None:
    others = [engine.submit("JULIET:", max_tokens=20, seed=i) for i in range(2)]
    searches = [engine.beams(PROMPT, max_tokens=9, **each) for each in OPTIONS]
    for options, search in zip(OPTIONS, searches, strict=True):
        found = model.beams(PROMPT, max_tokens=9, **options)
        assert search.beams == found
        assert (search.text, search.tokens) == (found[0].text, list(found[0].tokens))
        assert (search.stop_reason, search.complete) == (found[0].stop_reason, found[0].complete)
        texts = [(each.text, tuple(each.tokens)) for each in search.generations]
        assert texts == [(each.text, each.tokens) for each in found]
    for i, other in enumerate(others):
        assert other.tokens == model.generate("JULIET:", max_tokens=20, seed=i).tokens
    wait_until_idle(engine)
    assert is_empty(engine)
    assert engine.stats.finished == len(OPTIONS) + 2


@pytest.mark.parametrize("options", OPTIONS)
def test_the_ways_of_the_texts_are_noted(engine: aleator.Engine, options: dict[str, Any]) -> None:
    search = engine.beams(PROMPT, max_tokens=9, noted=True, **options)
    steps = search.steps
    n = options["num_beams"]
    for before, beams_left in itertools.pairwise(steps):
        on = [each.done for each in before].count(False)
        assert 0 < on <= n
        assert {each.parent for each in beams_left} <= set(range(on))
    for beam in search.beams:
        place, logprobs = 0, []
        for step, token in zip(steps, beam.tokens, strict=False):
            ((place, last),) = [
                (i, each)
                for i, each in enumerate(step)
                if (each.parent, each.token) == (place, token)
            ]
            logprobs.append(last.logprob)
        assert tuple(logprobs) == beam.logprobs
        assert last.done
        assert last.order == beam.score


async def test_steps_come_as_they_are_made(model: aleator.LanguageModel) -> None:
    with aleator.Engine(model, n_seq_max=2) as engine:
        search = engine.beams(PROMPT, num_beams=2, max_tokens=5, noted=True)
        assert [step async for step in search.steps_async()] == search.steps
        assert len(search.steps) == 5
        assert engine.beams(PROMPT, num_beams=2, max_tokens=5).steps == []


@pytest.mark.parametrize("name", ["gemma3", "mamba", "jamba"])
def test_windows_and_states(name: str, tmp_path: Path) -> None:
    model = aleator.load(write_model(tmp_path / "m.gguf", SPECS[name]), n_threads=1, n_ctx=64)
    prompt = (3, 5, 7, 11, 2, 9, 4, 8)
    with aleator.Engine(model, n_seq_max=5) as engine:
        other = engine.submit((3, 5, 7), max_tokens=20, seed=1)
        search = engine.beams(prompt, num_beams=4, num_return_sequences=4, max_tokens=7)
        assert search.beams == model.beams(
            prompt, num_beams=4, num_return_sequences=4, max_tokens=7
        )
        assert other.tokens == model.generate((3, 5, 7), max_tokens=20, seed=1).tokens


def test_a_search_waits_for_its_sequences(
    model: aleator.LanguageModel, engine: aleator.Engine
) -> None:
    first = engine.submit("JULIET:", max_tokens=30, seed=1)
    search = engine.beams(PROMPT, num_beams=3, max_tokens=5)
    next(first)
    assert not search.done  # of three sequences two are free
    assert search.wait(timeout=60)
    assert first.done
    assert search.beams == model.beams(PROMPT, num_beams=3, max_tokens=5)


def test_a_long_prompt_is_read_in_pieces_and_shared(model: aleator.LanguageModel) -> None:
    prompt = "First Citizen:\n" * 20
    with aleator.Engine(model, n_seq_max=3, token_budget=16) as engine:
        search = engine.beams(prompt, num_beams=2, max_tokens=4)
        assert search.beams == model.beams(prompt, num_beams=2, max_tokens=4)
        assert search.stats.prompt_tokens == len(search.request.tokens)
        again = engine.beams(prompt, num_beams=2, max_tokens=4)
        assert again.beams == search.beams
        assert again.stats.reused_tokens == len(search.request.tokens) - 1
        assert again.stats.decode_tokens == 2 * 3


def test_the_choice_of_a_step_takes_several_steps(
    model: aleator.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aleator.engine.engine_loop.CHOOSING_SECONDS", 0.0)
    with aleator.Engine(model, n_seq_max=4) as engine:
        before = engine.stats.steps
        search = engine.beams(PROMPT, num_beams=3, max_tokens=6)
        assert search.beams == model.beams(PROMPT, num_beams=3, max_tokens=6)
        assert engine.stats.steps - before == 6  # a step without rows is none
        beside = engine.beams(PROMPT, num_beams=3, max_tokens=6)
        other = engine.submit("JULIET:", max_tokens=40, seed=1)
        assert beside.beams == search.beams
        assert other.tokens == model.generate("JULIET:", max_tokens=40, seed=1).tokens


def test_ends_from_outside_leave_no_texts(
    model: aleator.LanguageModel, engine: aleator.Engine
) -> None:
    search = engine.beams(PROMPT, num_beams=2, max_tokens=400, ignore_eos=True)
    other = engine.submit("JULIET:", max_tokens=20, seed=1)
    next(other)
    assert search.cancel()
    assert search.wait(timeout=30)
    assert (search.stop_reason, search.beams, search.text) == ("interrupted", [], "")
    late = engine.beams(PROMPT, num_beams=2, max_tokens=400, deadline=0)
    assert late.wait(timeout=30)
    assert (late.stop_reason, late.beams) == ("deadline", [])
    assert other.tokens == model.generate("JULIET:", max_tokens=20, seed=1).tokens
    wait_until_idle(engine)
    assert is_empty(engine)
    assert (engine.stats.cancelled, engine.stats.expired) == (1, 1)


def test_an_error_ends_its_search_alone(
    model: aleator.LanguageModel, engine: aleator.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [0]

    def third_fails(chain: Any, row: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            raise RuntimeError("not today")
        return distribution(chain, row)

    monkeypatch.setattr(beams, "distribution", third_fails)
    other = engine.submit("JULIET:", max_tokens=20, seed=1)
    search = engine.beams(PROMPT, num_beams=2, max_tokens=10)
    with pytest.raises(RuntimeError, match="not today"):
        search.result(timeout=30)
    assert other.tokens == model.generate("JULIET:", max_tokens=20, seed=1).tokens
    wait_until_idle(engine)
    assert is_empty(engine)
    assert engine.beams(PROMPT, num_beams=2, max_tokens=4).beams == model.beams(
        PROMPT, num_beams=2, max_tokens=4
    )


@pytest.mark.parametrize(
    ("options", "name", "says"),
    [
        ({"num_beams": 4}, "num_beams", "the context has 3 sequences"),
        ({"temperature": 0}, "temperature", "leave it out"),
        ({"mirostat": 1}, "mirostat", "leave it out"),
        ({"logprobs": 3}, "logprobs", "there is no option"),
        ({"num_beams": 2, "num_return_sequences": 3}, "num_return_sequences", "or more beams"),
        ({"max_tokens": 0}, "max_tokens", "1 or more"),
    ],
)
def test_what_has_no_meaning_is_refused_before_anything_begins(
    engine: aleator.Engine, options: dict[str, Any], name: str, says: str
) -> None:
    with pytest.raises(ParameterError, match=says) as error:
        engine.beams(PROMPT, **{"num_beams": 2, **options})
    assert error.value.parameter == name
    assert engine.stats.submitted == 0


def test_limits_of_cells(model: aleator.LanguageModel) -> None:
    with aleator.Engine(model, n_seq_max=2, n_ctx=64) as engine:
        prompt = model.prompt_tokens("ROMEO:")
        n = len(prompt)
        with pytest.raises(ContextFull, match="its beams included"):
            engine.beams(prompt, num_beams=2, max_tokens=(64 - n) // 2 + 2)
        # All cells, without a number: each text has its share of the positions.
        (found,) = engine.beams(prompt, num_beams=2, ignore_eos=True).beams
        assert (len(found.tokens), found.stop_reason) == (32 - n + 1, "context")
        fits = engine.beams(prompt, num_beams=2, max_tokens=(64 - n) // 2 + 1, ignore_eos=True)
        assert fits.wait(timeout=30)
        assert fits.stop_reason == "length"


def test_tasks_wait_and_nothing_is_held(model: aleator.LanguageModel) -> None:
    async def found(engine: aleator.Engine) -> str:
        return await engine.beams(PROMPT, num_beams=2, max_tokens=5)

    with aleator.Engine(model, n_seq_max=2) as engine:
        assert asyncio.run(found(engine)) == model.beams(PROMPT, num_beams=2, max_tokens=5)[0].text
        kept = engine.beams(PROMPT, num_beams=2, max_tokens=5)
        kept.wait()
        cut_off = engine.beams(PROMPT, num_beams=2, max_tokens=400, ignore_eos=True)
        context = weakref.ref(loop_of(engine).context)
    assert cut_off.stop_reason == "interrupted"
    gc.collect()
    assert context() is None
    assert kept.beams == model.beams(PROMPT, num_beams=2, max_tokens=5)
