"""Turns for what takes long: few at a time, and fair between those who ask."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aleator.core.errors import EngineClosed


class Turns:
    """Hands out turns, in one event loop.

    Everybody has one turn at a time.  Who has waited longest since the last one is next, however many others of
    the same wait behind it.

    Args:
        most: Turns at the same time.
    """

    def __init__(self, most: int) -> None:
        self._left, self._closed = most, False
        self._having: set[str] = set()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # in the order in which they go

    @asynccontextmanager
    async def turn(self, who: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it within the block.

        Args:
            who: Whose turn it is.

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
        """Let nobody have a turn any more, those who wait included; in the event loop."""
        self._closed = True
        waiting, self._waiting = self._waiting, {}
        for each in (each for queue in waiting.values() for each in queue if not each.done()):
            each.set_exception(_closed())

    def _give_back(self, who: str) -> None:
        self._having.discard(who)
        self._left += 1
        if who in self._waiting:  # behind those who have waited since before
            self._waiting[who] = self._waiting.pop(who)
        self._go_on()

    def _go_on(self) -> None:
        """Give turns to those who may have one."""
        for who in [each for each in self._waiting if each not in self._having]:
            if not self._left:
                return
            queue = self._waiting.pop(who)
            while queue and queue[0].done():  # it was cancelled
                queue.popleft()
            if not queue:
                continue
            self._left -= 1
            self._having.add(who)
            queue.popleft().set_result(None)
            if queue:
                self._waiting[who] = queue


def _closed() -> EngineClosed:
    return EngineClosed("the server ends: ask again")
