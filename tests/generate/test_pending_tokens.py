"""Tokens that take long to choose: their requests sit steps out, and the tokens are the same."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aleator
from aleator import samplers as S
from aleator.engine import engine_loop
from aleator.engine.stats import EndedRequest
from aleator.generate import token_sampler
from aleator.generate.complete_grammar import Work
from aleator.generate.generation import Generation, reader_of
from aleator.generate.request_state import RequestState
from aleator.generate.token_sampler import PendingTokens, SampledToken

HARD = S.Regex("((a|b)(c|d)){60}")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "pets": {"type": "array", "items": {"type": "string"}, "minItems": 2},
    },
    "required": ["name", "pets"],
    "additionalProperties": False,
}


@pytest.fixture
def piecewise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every choice has one piece of its work done in a step."""
    monkeypatch.setattr(engine_loop, "CHOOSING_SECONDS", 0.0)


def together(engine: aleator.Engine, *submits: Callable[[], Generation]) -> list[Generation]:
    """Have several requests begin in the same step."""
    held, goes_on = threading.Event(), threading.Event()

    def hold(context: object, seq: int) -> None:
        held.set()
        goes_on.wait(60)

    engine.visit(hold)
    assert held.wait(60)  # before that, the first could begin alone
    made = [submit() for submit in submits]
    goes_on.set()
    return made


@pytest.mark.usefixtures("piecewise")
def test_others_go_on_while_an_ending_is_looked_for(model: aleator.LanguageModel) -> None:
    ended: list[tuple[EndedRequest, int]] = []
    made: list[Generation] = []

    def on_end(each: EndedRequest) -> None:
        ended.append((each, len(reader_of(made[0]).completion.tokens)))

    with aleator.Engine(model, n_seq_max=2, on_end=on_end) as engine:
        made += together(
            engine,
            lambda: engine.submit("a", grammar=HARD, max_tokens=50, seed=1),
            lambda: engine.submit("ROMEO:", max_tokens=20, seed=2),
        )
        made[1].wait()
        other, drawn = ended[0]
        assert other.tokens == 20
        assert drawn == 0  # the first token of the hard one is still looked for
        assert made[0].tokens == model.generate("a", grammar=HARD, max_tokens=50, seed=1).tokens
        assert made[1].tokens == model.generate("ROMEO:", max_tokens=20, seed=2).tokens


@pytest.mark.usefixtures("piecewise")
@pytest.mark.parametrize(
    "options",
    [
        {"json_schema": SCHEMA, "max_tokens": 40},
        {"json_schema": SCHEMA, "max_tokens": 40, "spec_type": "ngram", "logprobs": 2},
        {"json_schema": SCHEMA, "max_tokens": 40, "kept": True, "logprobs": 1},
        {"json_schema": SCHEMA, "max_tokens": 30, "guidance_scale": 1.5, "negative_prompt": "x"},
        {"grammar": S.Regex("[0-9]{12}"), "max_tokens": 30, "temperature": 2.0},
    ],
)
def test_tokens_do_not_depend_on_waiting(
    model: aleator.LanguageModel, options: dict[str, Any]
) -> None:
    with model.engine(n_seq_max=4) as engine:
        made = together(
            engine, *(lambda s=s: engine.submit("ROMEO:", seed=s, **options) for s in range(2))
        )
        for seed, each in enumerate(made):
            alone = model.generate("ROMEO:", seed=seed, **options)
            assert each.tokens == alone.tokens
            assert each.logprobs == alone.logprobs
            assert each.complete == alone.complete


@pytest.mark.usefixtures("piecewise")
def test_one_that_ends_meanwhile_takes_its_token_back(model: aleator.LanguageModel) -> None:
    with model.engine(n_seq_max=1) as engine:
        runner = engine._loop._core.runner  # type: ignore[union-attr]
        waits = threading.Event()
        states: list[RequestState] = []
        begin = runner.pending.begin

        def begun(state: RequestState, drawn: SampledToken) -> SampledToken | None:
            made = begin(state, drawn)
            if made is None:
                states.append(state)
                engine.visit(lambda context, seq: None)
                waits.set()
            return made

        runner.pending.begin = begun  # type: ignore[method-assign]
        made = engine.submit("a", grammar=HARD, max_tokens=50, seed=1)
        assert waits.wait(60)
        made.cancel()
        assert made.tokens == []
        assert made.stop_reason == "interrupted"
        assert made.chain.history == list(made.request.tokens)
        assert states[0] not in runner.pending
        again = engine.submit("ROMEO:", max_tokens=5, seed=1)  # its place is free
        assert len(again.tokens) == 5


def work(n: int, token: int, closed: list[str] | None = None) -> Work[int | None]:
    try:
        for _ in range(n):
            yield
    except GeneratorExit:
        if closed is not None:
            closed.append("closed")
        raise
    return token


def drawn_by(choosing: Work[int | None] | None, row: Any = None) -> SampledToken:
    return SampledToken(None, lambda token, top, of: None, row, choosing)  # type: ignore[arg-type, return-value]


def test_pending_tokens_take_turns() -> None:
    states: Any = [object(), object()]
    at_once = PendingTokens()
    made = at_once.begin(states[0], drawn_by(work(1000, 7)))
    assert made is not None
    assert made.token == 7
    assert states[0] not in at_once
    known = drawn_by(None)
    assert at_once.begin(states[0], known) is known

    row = np.arange(4, dtype=np.float32)
    pending, closed = PendingTokens(0.0), list[str]()
    assert pending.begin(states[0], drawn_by(work(3, 5), row)) is None
    assert pending.begin(states[1], drawn_by(work(3, 6, closed), row)) is None
    assert all(each in pending for each in states)
    row[:] = 0  # by the next batch
    assert [pending.go_on(states[0]) for _ in range(2)] == [None, None]
    made = pending.go_on(states[0])
    assert made is not None
    assert made.token == 5
    assert made.row is not None
    assert made.row.tolist() == [0, 1, 2, 3]
    assert states[0] not in pending
    pending.drop(states[1])
    pending.drop(states[1])
    assert closed == ["closed"]
    assert states[1] not in pending


def test_a_choice_that_fails_is_forgotten() -> None:
    def fails() -> Work[int | None]:
        yield
        raise ValueError("no")

    state: Any = object()
    pending = PendingTokens(0.0)
    assert pending.begin(state, drawn_by(fails(), np.zeros(2, np.float32))) is None
    with pytest.raises(ValueError, match="no"):
        pending.go_on(state)
    assert state not in pending


def test_the_time_of_a_step_is_shared_by_all_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six seconds, with pieces of one: what begins alone has all of them, two have half each."""
    clock, done = [100.0], Counter[int]()
    monkeypatch.setattr(token_sampler, "perf_counter", lambda: clock[0])

    def pieces(token: int) -> Work[int | None]:
        for _ in range(20):
            clock[0] += 1.0
            done[token] += 1
            yield
        return token

    states: Any = [object(), object()]
    pending = PendingTokens(6.0)
    assert pending.begin(states[0], drawn_by(pieces(0))) is None
    assert pending.begin(states[1], drawn_by(pieces(1))) is None
    assert done == {0: 6, 1: 3}
    assert pending.go_on(states[0]) is None
    assert done == {0: 9, 1: 3}
