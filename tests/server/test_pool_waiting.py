"""Requests that wait for a model: their bounds, their time, clients that leave, the end, downloads."""

from __future__ import annotations

import asyncio
import threading

import pytest

from aleator.core.errors import EngineClosed, QueueFull
from aleator.server.bodies import in_thread
from aleator.server.errors import ApiError
from aleator.server.pool import ClientLeft
from tests.server.test_pool import Models, settled


async def test_a_client_that_leaves_while_its_model_waits_for_room_takes_its_place_back() -> None:
    models, end, left = Models("ab", models_max=1), asyncio.Event(), asyncio.Event()
    one = models.busy("a", end)
    await settled(lambda: "use a" in models.notes)

    async def leaving() -> None:
        await left.wait()

    async def other() -> None:
        async with models.pool.use(models.of["b"].entry, leaving):
            raise AssertionError

    two = asyncio.create_task(other())
    await settled(lambda: models.of["a"].entry.leaving)
    assert models.states() == ["loaded", "loading"]
    left.set()
    with pytest.raises(ClientLeft):
        await two
    await models.ask("a")  # while the first one goes on
    assert models.notes == ["load a", "use a"]
    assert models.states() == ["loaded", "unloaded"]
    end.set()
    await one


async def test_the_queue_of_a_loading_is_bounded() -> None:
    models = Models("ab", max_queue=2)
    models.of["a"].held.clear()
    both = [asyncio.create_task(models.ask("a")) for _ in range(2)]
    await settled(lambda: models.of["a"].entry.waiting == 2)
    with pytest.raises(QueueFull, match="2 requests wait already"):
        await models.ask("a")
    models.of["a"].held.set()
    await asyncio.gather(*both)


async def test_the_bodies_of_waiting_requests_are_bounded() -> None:
    models = Models("a", max_body_bytes=1024)
    entry = models.of["a"].entry
    models.of["a"].held.clear()

    async def ask() -> None:
        async with models.pool.use(entry, size=1024):
            pass

    entry.max_queue = 100
    asked = [asyncio.create_task(ask()) for _ in range(32)]
    await settled(lambda: entry.waiting == 32)
    with pytest.raises(ApiError, match="take all room") as caught:
        await ask()
    assert caught.value.status == 503
    models.of["a"].held.set()
    await asyncio.gather(*asked)
    await ask()


async def test_a_request_waits_no_longer_than_its_time() -> None:
    models = Models("a", request_timeout=0.05)
    models.of["a"].held.clear()
    with pytest.raises(ApiError, match=r"not loaded within 0\.05 s") as caught:
        await models.ask("a")
    assert caught.value.status == 503
    models.of["a"].held.set()
    await settled(lambda: models.loaded == "a")  # its loading goes on for others
    await models.ask("a")


async def test_the_end_interrupts_loading_and_all_who_wait() -> None:
    models, end = Models("abc", models_max=2), asyncio.Event()
    one = models.busy("a", end)
    await settled(lambda: "use a" in models.notes)
    models.of["b"].held.clear()
    others = [asyncio.create_task(models.ask("b"))]
    await settled(lambda: "load b" in models.notes)
    others.append(asyncio.create_task(models.ask("c")))
    await settled(lambda: models.of["c"].entry.waiting == 1)
    models.pool.cut()
    told = await asyncio.gather(*others, return_exceptions=True)
    assert [type(each) for each in told] == [EngineClosed] * 2
    with pytest.raises(EngineClosed):
        await models.ask("c")
    end.set()
    await one
    await settled(lambda: all(each.entry.task is None for each in models.of.values()))
    assert models.loaded == "a"
    models.pool.close()
    assert models.notes == ["load a", "use a", "load b", "cut", "close a"]


async def test_a_loading_that_ends_after_the_end_is_undone() -> None:
    models = Models("a")
    one = models.of["a"]
    one.entry.load = lambda progress: one.load(lambda done, total: None)  # its last step
    one.held.clear()
    asked = asyncio.create_task(models.ask("a"))
    await settled(lambda: models.notes == ["load a"])
    models.pool.cut()
    with pytest.raises(EngineClosed):
        await asked
    one.held.set()
    await settled(lambda: models.notes == ["load a", "close a"])
    assert models.loaded == ""


async def test_what_is_kept_loaded_waits_for_its_turn_as_long_as_it_takes() -> None:
    models = Models("ab", request_timeout=0.05, kept="ab")
    models.of["a"].held.clear()
    models.pool.begin()
    await asyncio.sleep(0.2)
    models.of["a"].held.set()
    await settled(lambda: models.loaded == "ab")
    await settled(lambda: not any(each.entry.waiting for each in models.of.values()))


async def test_a_request_can_be_cancelled_though_the_watch_over_its_client_has_not_ended() -> None:
    models, ends = Models("a"), asyncio.Event()
    models.of["a"].held.clear()

    async def gone() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await ends.wait()

    async def request() -> None:
        async with models.pool.use(models.of["a"].entry, gone):
            raise AssertionError

    asked = asyncio.create_task(request())
    await settled(lambda: models.notes == ["load a"])
    asked.cancel()
    await asyncio.wait([asked], timeout=30)
    assert asked.cancelled()
    assert models.of["a"].entry.waiting == 0
    ends.set()
    models.of["a"].held.set()
    await settled(lambda: models.loaded == "a")


async def test_others_are_loaded_while_a_model_is_downloaded() -> None:
    models, found = Models("ab"), threading.Event()

    def measure() -> int:
        found.wait(60)
        models.notes.append("find a")
        return 10

    models.of["a"].entry.measure = measure
    slow = asyncio.create_task(models.ask("a"))
    await settled(lambda: models.states()[0] == "loading")
    await models.ask("b")
    assert models.notes == ["load b"]
    found.set()
    await slow
    assert models.notes == ["load b", "find a", "load a"]
    assert models.of["a"].entry.bytes == 10


async def test_many_downloads_leave_threads_for_requests() -> None:
    names = [chr(ord("a") + i) for i in range(50)]  # more than anyio's usual threads
    models, found, begun = Models("".join(names)), threading.Event(), threading.Semaphore(0)

    def measure() -> int:
        begun.release()
        found.wait(60)
        return 10

    for each in models.of.values():
        each.entry.measure = measure
    slow = [asyncio.create_task(models.ask(name)) for name in names]
    try:
        async with asyncio.timeout(20):
            assert await in_thread(lambda: [begun.acquire() for _ in names])
    finally:
        found.set()
    await asyncio.gather(*slow)
