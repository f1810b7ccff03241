"""What is done with an engine's context between steps: by whom, and when."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NoReturn

import pytest

import aleator
from aleator.core.errors import CacheError, EngineClosed
from aleator.generate.context import Context
from aleator.generate.session import (
    Rows,
    Session,
    open_session,
    restore_session,
    rows_of,
    write_session,
)

PROMPT = "ROMEO:\nO, she doth teach the torches to burn bright"


def test_a_visit_is_made_in_the_engines_thread_with_an_empty_sequence(
    model: aleator.LanguageModel,
) -> None:
    with aleator.Engine(model, n_seq_max=2) as engine:

        def look(context: Context, seq: int) -> tuple[str, int, int]:
            return threading.current_thread().name, seq, context.cache.seq_pos_max(seq)

        assert engine.visit(look).result(30) == ("aleator-engine", 0, -1)


def test_a_visit_waits_until_a_sequence_is_free(model: aleator.LanguageModel) -> None:
    with aleator.Engine(model, n_seq_max=1) as engine:
        running = engine.submit(PROMPT, max_tokens=200, seed=1)
        next(running)
        was_running = engine.visit(lambda context, seq: running.done)
        waiting = engine.submit(PROMPT, max_tokens=5, seed=1)
        assert was_running.result(60)  # it began once that one had ended,
        assert not waiting.done or waiting.wait(60)  # and before the next one
        assert running.stop_reason == "length"
        assert waiting.wait(60)


def test_what_a_visit_leaves_in_its_sequence_is_removed(model: aleator.LanguageModel) -> None:
    with aleator.Engine(model, n_seq_max=1) as engine:
        alone = engine.submit(PROMPT, max_tokens=10, seed=1)
        assert alone.wait(60)
        tokens = [*alone.request.tokens, *alone.tokens]
        held = engine.visit(lambda context, seq: context.cache.reuse(seq, tokens)).result(30)
        assert held == len(tokens) - 1
        again = engine.submit(PROMPT, max_tokens=10, seed=1)
        assert again.tokens == alone.tokens


def test_an_error_of_a_visit_is_raised_where_it_was_asked_for(model: aleator.LanguageModel) -> None:
    with aleator.Engine(model, n_seq_max=1) as engine:

        def fail(context: Context, seq: int) -> NoReturn:
            raise CacheError("not today")

        with pytest.raises(CacheError, match="not today"):
            engine.visit(fail).result(30)
        assert engine.submit(PROMPT, max_tokens=3, seed=1).wait(60)


def test_a_closed_engine_is_not_visited(model: aleator.LanguageModel) -> None:
    engine = aleator.Engine(model, n_seq_max=1)
    running = engine.submit(PROMPT, max_tokens=500, seed=1)
    next(running)
    late = engine.visit(lambda context, seq: seq)
    engine.close()
    with pytest.raises(EngineClosed):
        late.result(0)
    with pytest.raises(EngineClosed):
        engine.visit(lambda context, seq: seq)


def test_a_visit_that_was_cancelled_is_not_made(model: aleator.LanguageModel) -> None:
    with aleator.Engine(model, n_seq_max=1) as engine:
        running = engine.submit(PROMPT, max_tokens=100, seed=1)
        next(running)
        made: list[int] = []
        given_up = engine.visit(lambda context, seq: made.append(seq))
        assert given_up.cancel()
        assert engine.visit(lambda context, seq: list(made)).result(60) == []


def test_a_text_is_saved_and_restored_in_another_namespace_of_another_engine(
    model: aleator.LanguageModel, tmp_path: Path
) -> None:
    path = tmp_path / "text.state"
    with aleator.Engine(model, n_seq_max=2) as engine:
        first = engine.submit(PROMPT, max_tokens=20, seed=1, namespace="here")
        text = (*first.request.tokens, *first.tokens)

        def copy(context: Context, seq: int) -> Rows:
            return rows_of(context, text, "here", seq)

        rows = engine.visit(copy).result(30)
        assert rows.n_tokens == len(text) - 1
        write_session(path, Session(text, len(first.request.tokens)), rows, model.identity)
        fresh = engine.submit(text, max_tokens=20, seed=2, logprobs=3, namespace="nowhere")
        assert fresh.wait(60)
        assert fresh.stats.reused_tokens == 0

    with aleator.Engine(model, n_seq_max=2) as engine:
        state, session = open_session(path, len(model.vocab), model.identity)

        def put(context: Context, seq: int) -> Session:
            return restore_session(context, state, session, seq, "there")

        assert engine.visit(put).result(30).restored == len(text) - 1
        gone_on = engine.submit(text, max_tokens=20, seed=2, logprobs=3, namespace="there")
        assert gone_on.tokens == fresh.tokens
        assert gone_on.logprobs == fresh.logprobs
        assert gone_on.stats.reused_tokens == len(text) - 1
        assert engine.submit(text, max_tokens=1, seed=2).wait(60)

        def forget(context: Context, seq: int) -> tuple[int, int, int]:
            cache = context.cache
            gone = cache.forget_namespace("there")
            return gone, cache.match(text, "there").length, cache.match(text, "").length

        gone, left, elsewhere = engine.visit(forget).result(30)
        assert gone >= 1
        assert left == 0
        assert elsewhere == len(text) - 1  # nothing of another namespace is forgotten
