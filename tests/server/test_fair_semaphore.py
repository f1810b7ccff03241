"""A fair semaphore: few at a time, one for each, and who has waited longest is next."""

from __future__ import annotations

import asyncio

import pytest

from aleator.core.errors import EngineClosed
from aleator.server.grammars import FairSemaphore


async def test_the_order() -> None:
    semaphore, order = FairSemaphore(2), list[str]()
    goes_on = asyncio.Event()

    async def one(who: str, what: str) -> None:
        async with semaphore.acquire(who):
            order.append(what)
            await goes_on.wait()
            await asyncio.sleep(0)

    tasks = [asyncio.ensure_future(one("a", f"a{i}")) for i in range(4)]
    await asyncio.sleep(0)
    assert order == ["a0"]  # one for each
    tasks += [asyncio.ensure_future(one(who, f"{who}{i}")) for i in range(2) for who in "bc"]
    await asyncio.sleep(0)
    assert order == ["a0", "b0"]
    goes_on.set()
    await asyncio.gather(*tasks)
    assert order[2] == "c0"  # before all others of those that had a turn
    assert sorted(order) == ["a0", "a1", "a2", "a3", "b0", "b1", "c0", "c1"]
    assert order.index("c1") < order.index("a3")


async def test_whoever_is_cancelled_holds_up_nobody() -> None:
    semaphore = FairSemaphore(1)

    async def one(fails: bool = False) -> None:
        async with semaphore.acquire("a"):
            if fails:
                raise ValueError("no")

    async with semaphore.acquire("x"):
        waiting = [asyncio.ensure_future(one()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
    waiting[1].cancel()  # at the moment in which it has its turn
    await asyncio.wait(waiting)
    assert [each.cancelled() for each in waiting] == [True, True, False]
    with pytest.raises(ValueError, match="no"):
        await one(fails=True)
    async with asyncio.timeout(5):
        await one()


async def test_who_waits_when_it_closes_gets_an_error() -> None:
    semaphore, goes_on = FairSemaphore(1), asyncio.Event()

    async def one(who: str) -> str:
        async with semaphore.acquire(who):
            await goes_on.wait()
            return who

    tasks = [asyncio.ensure_future(one(who)) for who in "aab"]
    await asyncio.sleep(0)
    semaphore.close()
    goes_on.set()
    had, *waited = await asyncio.gather(*tasks, one("c"), return_exceptions=True)
    assert had == "a"
    assert [type(each) for each in waited] == [EngineClosed] * 3


async def test_who_has_given_up_all_its_waiting_has_no_turn() -> None:
    semaphore, held = FairSemaphore(1), list[str]()

    async def one(who: str) -> None:
        async with semaphore.acquire(who):
            held.append(who)

    async with semaphore.acquire("x"):
        waiting = {who: asyncio.ensure_future(one(who)) for who in "ab"}
        await asyncio.sleep(0)
        waiting["a"].cancel()
    await asyncio.wait(waiting.values())
    assert held == ["b"]
    async with semaphore.acquire("a"):
        assert held == ["b"]
