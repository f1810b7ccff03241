"""One context for many threads: streams, ends, limits, and what is left afterwards."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

import aleator
from aleator.core.errors import AleatorError, ContextFull, ParameterError, QueueFull
from aleator.engine.stats import EndedRequest
from tests.engine.engines import PROMPTS, loop_of, wait, wait_until_idle


def test_gives_what_generate_gives(model: aleator.LanguageModel, engine: aleator.Engine) -> None:
    made = [engine.submit(p, max_tokens=30, seed=i) for i, p in enumerate(PROMPTS)]
    for i, (prompt, generation) in enumerate(zip(PROMPTS, made, strict=True)):
        alone = model.generate(prompt, max_tokens=30, seed=i)
        assert list(generation) == list(alone)
        assert generation.tokens == alone.tokens
        assert generation.stop_reason == "length"
        assert generation.done
    assert made[0].stats is not made[1].stats
    assert made[0].stats.sampled_tokens == 30
    assert made[0].stats.decode_seconds > 0


def test_any_thread_may_submit_and_read(
    model: aleator.LanguageModel, engine: aleator.Engine
) -> None:
    texts: dict[int, str] = {}

    def ask(i: int) -> None:
        texts[i] = engine.submit(PROMPTS[i % 5], max_tokens=15, seed=i).text

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in (0, 7, 11):
        assert texts[i] == model.generate(PROMPTS[i % 5], max_tokens=15, seed=i).text
    assert engine.stats.finished == engine.stats.submitted == 12


def test_async_readers_share_one_event_loop(engine: aleator.Engine) -> None:
    async def read(seed: int) -> list[str]:
        return [piece async for piece in engine.submit("ROMEO:", max_tokens=12, seed=seed)]

    async def all_of_them() -> list[list[str]]:
        return await asyncio.gather(*(read(seed) for seed in range(5)))

    pieces = asyncio.run(all_of_them())
    for seed, each in enumerate(pieces):
        assert "".join(each) == engine.submit("ROMEO:", max_tokens=12, seed=seed).text


def test_generations_outside_an_engine_can_be_awaited_too(model: aleator.LanguageModel) -> None:
    async def read() -> str:
        return "".join([p async for p in model.generate("ROMEO:", max_tokens=8, seed=1)])

    assert asyncio.run(read()) == model.generate("ROMEO:", max_tokens=8, seed=1).text
    generation = model.generate("ROMEO:", max_tokens=8, seed=1)
    assert not generation.wait(timeout=0)
    assert generation.wait()


def test_a_cancelled_request_ends_and_leaves_the_others_alone(
    model: aleator.LanguageModel, engine: aleator.Engine
) -> None:
    other = engine.submit("ROMEO:", max_tokens=60, seed=1)
    generation = engine.submit("JULIET:", max_tokens=400, seed=2, ignore_eos=True)
    next(generation)
    generation.cancel()
    assert generation.wait(timeout=10)
    assert generation.stop_reason == "interrupted"
    assert 0 < len(generation.tokens) < 400
    assert other.text == model.generate("ROMEO:", max_tokens=60, seed=1).text
    assert engine.stats.cancelled == 1


def test_a_request_nobody_holds_any_more_is_cancelled(engine: aleator.Engine) -> None:
    generation = engine.submit("ROMEO:", max_tokens=400, ignore_eos=True)
    next(generation)
    del generation
    gc.collect()
    wait_until_idle(engine)
    assert engine.stats.cancelled == 1


def test_a_deadline_ends_a_request_wherever_it_is(engine: aleator.Engine) -> None:
    slow = [
        engine.submit("ROMEO:", max_tokens=400, ignore_eos=True, on_logits=wait) for _ in range(3)
    ]
    made = engine.submit("ROMEO:", max_tokens=400, deadline=0.05)
    assert (made.stop_reason, made.text) == ("deadline", "")
    running = slow[0]
    for each in slow[1:]:
        each.cancel()
    late = engine.submit("ROMEO:", max_tokens=400, ignore_eos=True, on_logits=wait, deadline=0.3)
    assert late.stop_reason == "deadline"
    running.cancel()
    assert engine.stats.expired == 2


def test_too_many_requests_are_refused(model: aleator.LanguageModel) -> None:
    with aleator.Engine(model, n_seq_max=1, n_ctx=512, max_queue=2) as engine:
        made = [engine.submit("ROMEO:", max_tokens=300, on_logits=wait) for _ in range(3)]
        with pytest.raises(QueueFull, match="2 requests wait already") as caught:
            engine.submit("ROMEO:")
        assert caught.value.limit == 2
        made[1].cancel()
        assert made[1].wait(timeout=10)
        made.append(engine.submit("ROMEO:", max_tokens=2))
        assert engine.stats.refused == 1
    assert {each.stop_reason for each in made} == {"interrupted"}


def test_prompts_that_begin_alike_are_computed_once(engine: aleator.Engine) -> None:
    long = "First Citizen:\nBefore we proceed any further, hear me speak.\n\n" * 4
    made = [engine.submit(long + name, max_tokens=20, seed=1) for name in "ABC"]
    assert all(each.wait() for each in made)
    n = len(made[0].request.tokens)
    assert made[0].stats.reused_tokens == 0
    assert all(each.stats.reused_tokens >= n - 2 for each in made[1:])
    assert engine.stats.reused_tokens >= 2 * (n - 2)
    assert engine.submit(long + "A", max_tokens=1).stats.reused_tokens == 0  # nothing yet
    again = engine.submit(long + "A", max_tokens=1)
    assert again.wait()
    assert again.stats.reused_tokens == n - 1


def test_requests_that_share_a_prompt_do_not_reserve_it_twice(model: aleator.LanguageModel) -> None:
    long = "First Citizen:\nBefore we proceed any further, hear me speak.\n\n" * 6
    n = len(model.prompt_tokens(long))
    with aleator.Engine(model, n_seq_max=4, n_ctx=n + 4 * 40) as engine:
        assert engine.submit(long, max_tokens=1).wait()
        all_are_here, running = threading.Event(), []

        def look(chain: Any, logits: Any) -> None:
            all_are_here.wait(20)
            running.append(engine.stats.running)

        made = [
            engine.submit(long, max_tokens=30, seed=s, ignore_eos=True, on_logits=look)
            for s in range(4)
        ]
        all_are_here.set()
        assert all(each.wait() for each in made)
        assert max(running) == 4
        assert engine.stats.cells == n + 160


def test_a_context_shift_moves_nobody_else(model: aleator.LanguageModel) -> None:
    options: dict[str, Any] = {"max_tokens": 120, "ignore_eos": True, "seed": 3}
    with aleator.Engine(model, n_seq_max=3, n_ctx=3 * 64) as engine:
        first = engine.submit("ROMEO:\nO, she doth teach", max_tokens=1)
        assert first.wait()
        shifting = [
            engine.submit("ROMEO:\nO, she doth teach", context_shift=True, **options)
            for _ in range(2)
        ]
        still = engine.submit("ROMEO:\nO, she doth teach", max_tokens=40, seed=3, ignore_eos=True)
        assert shifting[0].tokens == shifting[1].tokens
        assert shifting[0].stats.context_shifts > 1
        assert still.tokens == shifting[0].tokens[:40]
        wait_until_idle(engine)
        loop_of(engine).context.cache.check()


def test_without_max_tokens_a_request_has_its_share_of_the_positions(
    model: aleator.LanguageModel,
) -> None:
    with aleator.Engine(model, n_seq_max=2, n_ctx=64) as engine:
        made = engine.submit("ROMEO:", ignore_eos=True)
        assert made.stop_reason == "context"
        assert len(made.tokens) == 32 - 3 + 1
        with pytest.raises(ContextFull, match="give max_tokens"):
            engine.submit("ROMEO: " * 14)
        assert engine.submit("ROMEO: " * 14, max_tokens=2).wait()
        with pytest.raises(ContextFull, match="positions"):
            engine.submit("ROMEO: " * 40, max_tokens=2)


def test_no_tokens_at_all(engine: aleator.Engine) -> None:
    made = engine.submit("ROMEO:", max_tokens=0)
    assert (made.text, made.stop_reason) == ("", "length")


def test_grammars_are_forced_and_obeyed(
    model: aleator.LanguageModel, engine: aleator.Engine
) -> None:
    grammar = 'root ::= "My lord, " ("I will come" | "I will go") "."'
    made = engine.submit("ROMEO:", grammar=grammar, seed=4, max_tokens=50)
    assert made.text == model.generate("ROMEO:", grammar=grammar, seed=4, max_tokens=50).text
    assert made.complete
    wait_until_idle(engine)
    assert engine.stats.forced_tokens == made.stats.forced_tokens > 0


def test_what_cannot_be_is_refused(model: aleator.LanguageModel, engine: aleator.Engine) -> None:
    for options, name in (
        ({"multi_step": 4}, "multi_step"),
        ({"sampling_device": "device"}, "sampling_device"),
        ({"n": 2}, "n"),
        ({"priority": 2000}, "priority"),
        ({"deadline": -1}, "deadline"),
        ({"max_token": 3}, "max_token"),
    ):
        with pytest.raises(ParameterError) as caught:
            engine.submit("ROMEO:", **options)
        assert caught.value.parameter == name
    with pytest.raises(ParameterError, match="more than n_seq_max=8"):
        aleator.Engine(model, token_budget=8)
    with pytest.raises(ParameterError, match="at least n_seq_max=8"):
        aleator.Engine(model, n_ctx=4)
    huge = aleator.load(n_ctx=2_000_000_000)
    with pytest.raises(
        ParameterError, match=r"8 sequences of n_ctx=2000000000: .* needs [0-9,]+ MiB"
    ):
        aleator.Engine(huge)
    assert engine.stats.submitted == 0


def test_the_engines_thread_does_not_wait_for_itself(engine: aleator.Engine) -> None:
    held: list[Any] = []

    def reads(chain: Any, logits: Any) -> None:
        if held:
            held[0].wait()

    held.append(engine.submit("ROMEO:", max_tokens=100, on_logits=reads))
    with pytest.raises(AleatorError, match="own thread"):
        held[0].wait()


def test_the_engines_thread_reads_what_has_just_ended(engine: aleator.Engine) -> None:
    """Between the last token of a request and the moment in which its place is free."""
    found: list[str] = []
    go = threading.Event()

    def reads(chain: Any, logits: Any) -> None:
        go.wait(20)
        if not found and ended[0].done:
            found.append(ended[0].text)

    ended = [engine.submit("ROMEO:", max_tokens=8, seed=1, ignore_eos=True)]
    other = engine.submit("JULIET:", max_tokens=20, seed=1, ignore_eos=True, on_logits=reads)
    go.set()
    assert other.wait(timeout=20)
    assert found == [ended[0].text]


def test_whoever_wants_is_told_of_every_end(model: aleator.LanguageModel) -> None:
    told: list[EndedRequest] = []
    with aleator.Engine(model, n_seq_max=1, on_end=told.append) as engine:
        first = engine.submit("ROMEO:", max_tokens=4, seed=1)
        first.wait()
        late = engine.submit("ROMEO:", max_tokens=4, deadline=0.0)
        late.wait()
        long = engine.submit("ROMEO:", seed=1)
        next(long)
        long.cancel()
        long.wait()
    assert [each.reason for each in told] == ["length", "deadline", "interrupted"]
    assert (told[0].prompt, told[0].tokens) == (3, 4)
    queued, first_token = told[0].queued, told[0].first
    assert queued is not None
    assert first_token is not None
    assert 0 <= queued <= first_token <= told[0].seconds
    assert told[1].first is None


def test_namespaces_share_nothing_that_is_computed(model: aleator.LanguageModel) -> None:
    prompt = "First Citizen:\nHear me speak.\n" * 8
    with aleator.Engine(model, n_seq_max=4) as engine:
        engine.submit(prompt, max_tokens=2, namespace="a").wait()
        again = engine.submit(prompt, max_tokens=2, namespace="a")
        other = engine.submit(prompt, max_tokens=2, namespace="b")
        for each in (again, other):
            each.wait()
        assert again.stats.reused_tokens > 50
        assert other.stats.reused_tokens == 0
        # Nor of those that run: each computes its whole prompt, and nobody waits for another.
        several = [engine.submit(prompt + "x", max_tokens=20, namespace=f"{i}") for i in range(4)]
        for each in several:
            each.wait()
        assert [each.stats.reused_tokens for each in several] == [0, 0, 0, 0]
        whole = len(several[0].request.tokens)
        assert [each.stats.prompt_tokens for each in several] == [whole] * 4
        # Guesses neither: what another namespace wrote is not looked at.
        guessed = engine.submit(prompt, max_tokens=8, namespace="c", spec_type="ngram")
        guessed.wait()
        assert guessed.stats.reused_tokens == 0
