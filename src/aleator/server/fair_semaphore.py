"""A semaphore that is fair between those who acquire it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aleator.core.errors import EngineClosed


class FairSemaphore:
    """Lets a few holders in at a time, in one event loop; each caller holds it once at a time.

    The caller that has waited longest since it last held the semaphore is next, however many requests of the
    same caller wait.

    Args:
        most: How many may hold it at the same time.
    """

    def __init__(self, most: int) -> None:
        self._left, self._closed = most, False
        self._holding: set[str] = set()
        self._waiting: dict[
            str, deque[asyncio.Future[None]]
        ] = {}  # in the order in which they are let in

    @asynccontextmanager
    async def acquire(self, who: str) -> AsyncIterator[None]:
        """Wait for the semaphore, and hold it within the block.

        Args:
            who: The caller.

        Raises:
            EngineClosed: :meth:`close` was called before.
        """
        if self._closed:
            raise _closed()
        mine = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(who, deque()).append(mine)
        self._go_on()
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():  # at the same moment
                self._give_back(who)
            raise
        try:
            yield
        finally:
            self._give_back(who)

    def close(self) -> None:
        """Let nobody in any more, also none of those that wait; called in the event loop."""
        self._closed = True
        waiting, self._waiting = self._waiting, {}
        for each in (each for queue in waiting.values() for each in queue if not each.done()):
            each.set_exception(_closed())

    def _give_back(self, who: str) -> None:
        self._holding.discard(who)
        self._left += 1
        if who in self._waiting:  # goes behind those that have waited longer
            self._waiting[who] = self._waiting.pop(who)
        self._go_on()

    def _go_on(self) -> None:
        """Let in whoever may hold it."""
        for who in [each for each in self._waiting if each not in self._holding]:
            if not self._left:
                return
            queue = self._waiting.pop(who)
            while queue and queue[0].done():  # it was cancelled
                queue.popleft()
            if not queue:
                continue
            self._left -= 1
            self._holding.add(who)
            queue.popleft().set_result(None)
            if queue:
                self._waiting[who] = queue


def _closed() -> EngineClosed:
    return EngineClosed("the server ends: ask again")
