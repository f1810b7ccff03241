"""Sampling parameters that differ by phase of a text: all ways to make one."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from aleator import Engine, LanguageModel, ParameterError, Session
from aleator.generate.generation import Generation
from tests.chat import templates

PROMPT = "First Citizen:\nHear me speak.\n"
HI = [{"role": "user", "content": "Speak."}]
CODE = {"begin": "e", "end": "t", "temperature": 1.4, "presence_penalty": 0.7}
PHASES: dict[str, Any] = {"code": CODE, "answer": {"temperature": 0.6, "frequency_penalty": 0.4}}
OPTIONS: dict[str, Any] = {"max_tokens": 50, "seed": 3, "phases": PHASES}


def by_hand(model: LanguageModel, prompt: list[int], **asked: Any) -> list[int]:
    """The text of one request for each run of tokens of a phase, which goes on at the same positions."""
    options = {**OPTIONS, **asked}
    wanted, phases = options.pop("max_tokens"), options.pop("phases")
    of = {name: dict(own) for name, own in phases.items() if name in ("code", "answer")}
    begin, end = (of["code"].pop(word) for word in ("begin", "end"))
    made: list[int] = []
    phase, text = "answer", b""
    while len(made) < wanted:
        session = Session((*prompt, *made), len(prompt))
        step = model.generate(session, max_tokens=1, **options, **of[phase])
        made += step.tokens
        if step.stop_reason != "length":
            break
        for byte in model.vocab.token_bytes(made[-1]):
            text += bytes([byte])
            if text.endswith((end if phase == "code" else begin).encode()):
                phase, text = ("answer" if phase == "code" else "code"), b""
    return made


def check(generation: Generation, model: LanguageModel, **asked: Any) -> None:
    prompt = list(generation.request.tokens)
    assert generation.tokens == by_hand(model, prompt, **asked)
    drew = generation.chain.phases[len(prompt) :]
    assert drew.count("code") > 3
    assert drew.count("answer") > 3


@pytest.mark.parametrize("asked", [{}, {"draw": "gumbel"}, {"min_p": 0.1, "xtc_probability": 0.5}])
def test_a_text_is_that_of_several_requests_by_hand(
    model: LanguageModel, asked: dict[str, Any]
) -> None:
    check(model.generate(PROMPT, **OPTIONS, **asked), model, **asked)


@pytest.mark.parametrize("spec_type", ["ngram", "draft"])
def test_speculation_changes_nothing(model: LanguageModel, spec_type: str) -> None:
    options = {**OPTIONS, "max_tokens": 80}
    drafter = _Right(model.generate(PROMPT, **options)) if spec_type == "draft" else None
    given: Any = {"drafter": drafter} if drafter else {"spec_type": spec_type}
    made = model.generate(PROMPT, **options, **given)
    assert made.tokens == model.generate(PROMPT, **options).tokens
    assert drafter is None or made.stats.draft_n_accepted > 0


class _Right:
    """Guesses what another generation made."""

    def __init__(self, other: Generation) -> None:
        self._text = [*other.request.tokens, *other.tokens]

    def draft(self, tokens: list[int], n: int) -> list[int]:
        return self._text[len(tokens) : len(tokens) + n]


def test_completions_banned_strings_and_grammars(model: LanguageModel) -> None:
    first, second = model.generate_batch([PROMPT], n=2, **OPTIONS)
    check(first, model)
    assert second.tokens != first.tokens
    assert len(set(second.chain.phases)) == 2
    banned = model.generate(PROMPT, banned_strings=["the"], **OPTIONS)
    assert "the" not in banned.text
    assert len(set(banned.chain.phases)) == 2
    made = model.generate(PROMPT, regex="[a-z ]{30,60}", **OPTIONS)
    assert made.text.replace(" ", "").isalpha()
    assert len(set(made.chain.phases)) == 2


def test_an_engine_mixes_requests_with_and_without(model: LanguageModel) -> None:
    asked: list[dict[str, Any]] = [{}, {"phases": {}}, {"seed": 9}, {"temperature": 2.0}] * 2
    with Engine(model, n_ctx=2048) as engine:
        handles = [engine.submit(PROMPT, **{**OPTIONS, **each}) for each in asked]
        for handle in handles:
            handle.wait()
        made = [handle.tokens for handle in handles]
    assert made == [model.generate(PROMPT, **{**OPTIONS, **each}).tokens for each in asked]
    assert len({*map(tuple, made)}) == 3  # the temperature of the request gives way


def test_a_device_draws_the_same(model: LanguageModel, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("torch")
    here = [g.tokens for g in model.generate_batch([PROMPT], n=3, **OPTIONS)]
    made = model.generate_batch([PROMPT], n=3, sampling_device="device", **OPTIONS)
    assert [g.tokens for g in made] == here
    assert len(set(made[0].chain.phases)) == 2
    own = {**OPTIONS, "phases": {**PHASES, "histories": "own"}}
    with pytest.raises(ParameterError, match="histories of their own are the host's"):
        model.generate(PROMPT, sampling_device="device", **own)
    adapting = {**OPTIONS, "mirostat": 2}
    with pytest.raises(ParameterError, match="phases with a sampler that adapts"):
        model.generate(PROMPT, sampling_device="device", **adapting)
    with caplog.at_level(logging.INFO, "aleator.generate"):
        model.generate(PROMPT, **own).wait()
    assert "on the host" in caplog.text


def test_a_device_chain_of_ones_own(model: LanguageModel) -> None:
    """It has no form of phases, so they run on the host, after nothing."""
    torch = pytest.importorskip("torch")
    from aleator import DeviceChain

    rows = np.random.default_rng(2).normal(0, 3, (40, len(model.vocab))).astype(np.float32)
    given = model.sampling_params(seed=1, phases={**PHASES, "histories": "own"})
    chain, other = given.chain(model.tokenizer), given.replace(seed=2).chain(model.tokenizer)
    device = DeviceChain(chain, 2, len(model.vocab), kernels="torch")
    device.set_row(1, other)
    for row in rows:
        made = device.sample(torch.from_numpy(np.stack([row, row]))).tolist()
        assert made == [chain.sample(row), other.sample(row)]
    device.rollback(0, 5)
    chain.rollback(5)
    made = device.sample(torch.from_numpy(np.stack([row, row]))).tolist()
    assert made[0] == chain.sample(row)


THOUGHTS: dict[str, Any] = {"thinking": {"temperature": 1.2}, "answer": {"temperature": 0}}


def test_a_prompt_says_where_a_text_begins(model: LanguageModel) -> None:
    asked: Any = {"max_tokens": 1, "seed": 1, "phases": THOUGHTS}

    def began(prompt: str, **given: Any) -> str:
        return model.generate(prompt, **{**asked, **given}).chain.phases[-1]

    assert began("<think>\n") == "thinking"
    assert began("<think> Hm </think>") == began("Speak.") == "answer"
    assert began("[t]", reasoning_marks=("[t]", "[/t]")) == "thinking"
    assert began("Speak.", phases={**THOUGHTS, "start": "thinking"}) == "thinking"
    lines = {"line": {"begin": "\n\n"}}  # a mark of nothing but white space
    assert began("Speak.\n\n", phases=lines) == "line"
    assert began("Speak.", phases=lines) == began("Speak.\n", phases=lines) == "answer"


def test_a_chat_knows_its_marks(model: LanguageModel) -> None:
    phases = {**THOUGHTS, "tool": {"top_k": 1}}
    asked: Any = {"max_tokens": 12, "seed": 1, "reasoning_budget": 3}
    made = model.chat(HI, chat_template=templates.DEEPSEEK, phases=phases, **asked).generation
    made.wait()
    drew = made.chain.phases[len(made.request.tokens) :]
    assert drew[:4] == ["thinking"] * 4
    assert drew[-1] == "answer"
    marks = {name: dict(own) for name, own in made.request.params.phases if name != "start"}
    assert (marks["thinking"]["begin"], marks["thinking"]["end"]) == ("<think>", "</think>")
    assert marks["tool"]["begin"] == "<｜tool▁calls▁begin｜>"
    given = model.sampling_params(phases=phases, seed=1)
    del asked["seed"]
    same = model.chat(HI, chat_template=templates.DEEPSEEK, params=given, **asked).generation
    assert same.request.params == made.request.params
    del asked["reasoning_budget"]
    with pytest.raises(ParameterError, match="nothing in the chat template says how 'tool' begins"):
        model.chat(HI, chat_template=templates.GENERIC, phases={"tool": {}}, seed=1, **asked)
    with pytest.raises(ParameterError, match="how 'thinking' begins"):
        model.chat(HI, chat_template=templates.GENERIC, phases={"thinking": {}}, seed=1)


def test_what_is_refused(model: LanguageModel) -> None:
    with pytest.raises(ParameterError, match="multi_step=4 with phases"):
        model.generate(PROMPT, multi_step=4, sampling_device="device", **OPTIONS)
    with pytest.raises(ParameterError, match="how 'tool' begins"):
        model.generate(PROMPT, phases={"tool": {}}, seed=1)
    with pytest.raises(ParameterError, match="numerics"):
        model.generate(PROMPT, numerics="llama.cpp", **OPTIONS)
    with (
        Engine(model, n_ctx=256) as engine,
        pytest.raises(ParameterError, match="mark 9999 is no token"),
    ):
        engine.submit(PROMPT, phases={"code": {"begin": 9999}}, seed=1)
