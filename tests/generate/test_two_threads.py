"""One context that two threads use: each decode is whole, and what each sees is as if it were alone."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from aleator import Generation, LanguageModel
from aleator.core.errors import CacheBusy
from aleator.generate import Batch, Context
from tests.cache.decoders import decoder_of

TEXTS = [[(7 * i + 3 * seq) % 60 for i in range(24)] for seq in range(2)]


def context(name: str, **options: Any) -> Context:
    return Context(decoder_of(name), n_ctx=96, n_seq_max=2, n_ubatch=4, type_v="f32", **options)


def use(ctx: Context, seq: int) -> list[bytes]:
    """Decode a text by parts, fail in between, and remove some of it."""
    text, seen = TEXTS[seq], []
    for i in range(0, 24, 3):
        seen.append(ctx.decode(Batch.one(text[i : i + 3], seq=seq)).tobytes())
        try:
            with ctx.cache.step():
                ctx.decode(Batch.one([5], seq=seq))
                raise KeyError
        except KeyError:
            pass
        assert ctx.cache.seq_pos_max(seq) == i + 2
    return seen


def together(calls: list[Callable[[], object]]) -> list[BaseException]:
    """Run all at once; what they raised."""
    errors: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba", "jamba"])
def test_each_thread_gets_what_it_would_get_alone(name: str) -> None:
    alone = [use(context(name), seq) for seq in range(2)]
    ctx, found = context(name), {}

    def run(seq: int) -> None:
        found[seq] = use(ctx, seq)

    assert together([functools.partial(run, seq) for seq in range(2)]) == []
    assert [found[0], found[1]] == alone
    assert ctx.cache.journal.current is None
    ctx.cache.check()


def test_a_second_thread_is_told_after_the_timeout() -> None:
    ctx = context("llama", lock_timeout=0.05)
    ctx.decode(Batch.one([1, 2, 3]))
    errors: list[BaseException] = []
    with ctx.cache.step():
        ctx.decode(Batch.one([4]))
        errors = together([lambda: ctx.decode(Batch.one([5], seq=1)), lambda: ctx.cache.seq_rm(0)])
    assert [type(error) for error in errors] == [CacheBusy, CacheBusy]
    assert (ctx.cache.seq_pos_max(0), ctx.cache.seq_pos_max(1)) == (3, -1)
    assert ctx.cache.journal.current is None
    ctx.decode(Batch.one([5], seq=1))


def test_generations_of_one_batch_can_be_read_at_the_same_time(model: LanguageModel) -> None:
    inside = threading.Lock()
    overlaps = []

    def look(chain: Any, logits: Any) -> None:
        if not inside.acquire(blocking=False):
            overlaps.append(1)
            return
        time.sleep(0.001)
        inside.release()

    def made() -> list[Generation]:
        options: dict[str, Any] = {"max_tokens": 25, "seed": 1, "on_logits": look}
        return model.generate_batch(["ROMEO:", "JULIET:"], **options)

    async def read(generation: Generation) -> str:
        return "".join([piece async for piece in generation])

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*map(read, made()))

    expected = [each.text for each in made()]
    assert asyncio.run(all_of_them()) == expected
    found = made()
    assert together([functools.partial(each.wait) for each in found]) == []
    assert [each.text for each in found] == expected
    assert overlaps == []


def test_a_reader_that_gave_up_waiting_can_read_on(model: LanguageModel) -> None:
    def slow(chain: Any, logits: Any) -> None:
        time.sleep(0.003)

    async def read() -> Generation:
        generation = model.generate("ROMEO:", max_tokens=20, seed=1, on_logits=slow)
        while not generation.done:
            try:
                await asyncio.wait_for(generation.__anext__(), 0.001)
            except (TimeoutError, StopAsyncIteration):
                continue
        return generation

    assert asyncio.run(read()).tokens == model.generate("ROMEO:", max_tokens=20, seed=1).tokens
