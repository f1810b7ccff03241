"""Readers of requests in event loops, and how the engine's thread wakes them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from aleator.generate.writing import Until

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


class Waiter:
    """What a task awaits until it is woken: a future of an event loop, that costs one turn of the loop.

    Where a future of asyncio's has its result, its task goes on one turn later, and each turn asks the system
    about all sockets.  Here the task goes on at once.

    Args:
        until: What the reader waits for.
        loop: Where it waits.

    Attributes:
        until: What the reader waits for.
        loop: Where it waits.
    """

    # By this tasks know what can be awaited; they set it.
    _asyncio_future_blocking = False

    def __init__(self, until: Until, loop: AbstractEventLoop) -> None:
        self.until, self.loop = until, loop
        self._over = self._cancelled = False
        self._callbacks: list[tuple[Callable[[Waiter], object], Context]] = []

    def __await__(self) -> Generator[Any, None, None]:
        if not self._over:
            self._asyncio_future_blocking = True
            yield self
        self.result()

    def get_loop(self) -> AbstractEventLoop:
        """The event loop that it belongs to."""
        return self.loop

    def done(self) -> bool:
        """Whether it was woken, or cancelled."""
        return self._over

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._cancelled

    def result(self) -> None:
        """Nothing.

        Raises:
            CancelledError: It was cancelled.
        """
        if self._cancelled:
            from asyncio import CancelledError  # who awaits has imported it

            raise CancelledError

    def add_done_callback(
        self, callback: Callable[[Waiter], object], *, context: Context | None = None
    ) -> None:
        """Have something called when it is woken or cancelled; it must not be done."""
        self._callbacks.append((callback, context or copy_context()))

    def remove_done_callback(self, callback: Callable[[Waiter], object]) -> int:
        """Have something called no more; returns how often it would have been."""
        before = len(self._callbacks)
        self._callbacks = [each for each in self._callbacks if each[0] != callback]
        return before - len(self._callbacks)

    def cancel(self, msg: object = None) -> bool:
        """Let whoever waits be cancelled; returns whether it still waited."""
        if self._over:
            return False
        self._over = self._cancelled = True
        for callback, context in self._callbacks:
            self.loop.call_soon(callback, self, context=context)
        return True

    def wake(self) -> None:
        """Let whoever waits go on, now; in the loop's thread, outside of tasks."""
        if not self._over:  # it was cancelled
            self._over = True
            for callback, context in self._callbacks:
                context.run(callback, self)


def wake(waiters: Sequence[Waiter]) -> None:
    """Let readers go on: each event loop is interrupted once, however many wait there."""
    loops: dict[AbstractEventLoop, list[Waiter]] = {}
    for each in waiters:
        loops.setdefault(each.loop, []).append(each)
    for loop, waiting in loops.items():
        with suppress(RuntimeError):  # the loop was closed, and nobody waits any more
            loop.call_soon_threadsafe(_wake, waiting)


def _wake(waiting: Sequence[Waiter]) -> None:
    for i, each in enumerate(waiting):
        try:
            each.wake()
        except BaseException:  # it is to end the loop; the others must not wait for ever
            each.loop.call_soon(_wake, waiting[i + 1 :])
            raise
