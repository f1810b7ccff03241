"""Readers in event loops are woken when they may go on, each loop once a step."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aleator
from aleator.engine.request_handle import Waiter, wake
from aleator.generate.generation import reader_of


async def test_each_loop_is_interrupted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    calls: list[Any] = []
    scheduled = loop.call_soon_threadsafe

    def counted(callback: Any, *args: Any) -> Any:
        calls.append(callback)
        return scheduled(callback, *args)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    waiters = [Waiter(lambda: True, loop) for _ in range(8)]
    tasks = [asyncio.ensure_future(awaited(each)) for each in waiters]
    await asyncio.sleep(0)
    waiters[3].cancel()
    wake(waiters)
    made = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(each, asyncio.CancelledError) for each in made] == [i == 3 for i in range(8)]
    assert len(calls) == 1
    assert sum(each.cancelled() for each in waiters) == 1
    assert all(each.done() for each in waiters)
    await waiters[0]  # what is over is not waited for


def test_a_closed_loop_waits_for_nothing() -> None:
    loop = asyncio.new_event_loop()
    waiter = Waiter(lambda: True, loop)
    loop.close()
    wake([waiter])
    assert not waiter.done()


async def test_a_task_goes_on_in_the_turn_in_which_it_is_woken() -> None:
    loop, seen = asyncio.get_running_loop(), list[str]()
    waiter = Waiter(lambda: True, loop)

    async def read() -> None:
        await waiter
        seen.append("read")

    task = asyncio.ensure_future(read())
    await asyncio.sleep(0)
    wake([waiter])
    loop.call_soon(seen.append, "the next call")
    await task
    assert seen == ["read", "the next call"]


async def test_a_task_that_is_cancelled_while_it_waits() -> None:
    waiter = Waiter(lambda: True, asyncio.get_running_loop())
    task = asyncio.ensure_future(awaited(waiter))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert waiter.cancelled()
    assert not waiter.cancel()
    wake([waiter])  # changes nothing
    await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await waiter
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await Waiter(lambda: True, asyncio.get_running_loop())


def test_who_ends_the_loop_holds_up_no_other() -> None:
    woken: list[int] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        waiters = [Waiter(lambda: True, loop) for _ in range(3)]

        async def read(i: int) -> None:
            await waiters[i]
            woken.append(i)
            if i == 0:
                raise SystemExit(3)

        tasks = [asyncio.ensure_future(read(i)) for i in range(3)]
        await asyncio.sleep(0)
        wake(waiters)
        await asyncio.gather(*tasks[1:])

    with pytest.raises(SystemExit):
        asyncio.run(run())
    assert woken[0] == 0


async def awaited(waiter: Waiter) -> None:
    await waiter


async def test_who_waits_for_the_end_is_not_woken_for_each_token(
    model: aleator.LanguageModel,
) -> None:
    with model.engine(n_seq_max=2) as engine:
        looked = 0
        made = engine.submit("ROMEO:", max_tokens=60, seed=1)
        reader = asyncio.ensure_future(reader_of(made).wait_async())
        loop = asyncio.get_running_loop()
        scheduled = loop.call_soon_threadsafe

        def counted(callback: Any, *args: Any) -> Any:
            nonlocal looked
            looked += 1
            return scheduled(callback, *args)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign, assignment]
        await reader
        assert made.done
        assert looked <= 1


async def test_pieces_and_where_they_end(model: aleator.LanguageModel) -> None:
    with model.engine(n_seq_max=2) as engine:
        made = engine.submit("ROMEO:", max_tokens=30, seed=1, logprobs=0)
        pieces = []
        while some := await reader_of(made).next_pieces():
            pieces += some
        assert "".join(piece.text for piece in pieces) == made.text
        ends = [piece.end for piece in pieces]
        assert ends == sorted(ends)
        assert ends[-1] <= len(made.tokens)
        told = made.logprobs or []
        assert reader_of(made).completion.logprobs == told
        again = engine.submit("ROMEO:", max_tokens=30, seed=1)
        await again
        assert [(p.text, p.end) for p in await reader_of(again).next_pieces()] == [
            (p.text, p.end) for p in pieces
        ]
