"""What others do with an engine's context, in its thread, between two steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from aleator.generate.context import Context

T = TypeVar("T")
Action = Callable[[Context, int], T]
"""Called with the context, and the number of a sequence that is empty, and is emptied again afterwards."""


class Visits:
    """Calls that wait for the context: any thread may ask for one, only the engine's thread makes them.

    Args:
        context: the engine's.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waiting: deque[tuple[Action[Any], Future[Any]]] = deque()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def ask(self, action: Action[T]) -> Future[T]:
        """Have something done.

        Args:
            action: what to do; it raises or returns, and changes nothing if it raises.

        Returns:
            What comes of it; cancelled before it began, it is not done.
        """
        future: Future[T] = Future()
        self._waiting.append((action, future))
        return future

    def make(self, seq: int | None) -> None:
        """Do everything that waits.

        Args:
            seq: a sequence that is empty; None: there is none now, and all go on waiting.
        """
        while self._waiting and seq is not None:
            action, future = self._waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                made = action(self._context, seq)
            except BaseException as error:  # it is for whoever asked
                future.set_exception(error)
            else:
                future.set_result(made)
            finally:
                self._context.cache.seq_rm(seq, -1, -1)

    def refuse(self, error: Exception) -> None:
        """Nothing more is done: tell those who wait."""
        while self._waiting:
            _, future = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
