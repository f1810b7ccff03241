"""Calls that other threads make on an engine's context; they run in the engine's thread, between two steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from aleator.generate.context import Context

T = TypeVar("T")
Action = Callable[[Context, int], T]
"""Called with the context and the id of a scratch sequence, which is cleared afterwards."""


class ContextCalls:
    """Calls that wait for the context: any thread submits them, and only the engine's thread runs them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waiting: deque[tuple[Action[Any], Future[Any]]] = deque()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def submit(self, action: Action[T]) -> Future[T]:
        """Queue an action; if it raises, it must have changed nothing.

        If the future is cancelled before the engine reaches it, the action is not run.
        """
        future: Future[T] = Future()
        self._waiting.append((action, future))
        return future

    def run_all(self, seq: int | None) -> None:
        """Run all actions that wait, with a scratch sequence; None: none is free, and all go on waiting."""
        while self._waiting and seq is not None:
            action, future = self._waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                made = action(self._context, seq)
            except BaseException as error:  # it belongs to the caller
                future.set_exception(error)
            else:
                future.set_result(made)
            finally:
                self._context.cache.seq_rm(seq, -1, -1)

    def fail_all(self, error: Exception) -> None:
        """End all futures that wait with an error."""
        while self._waiting:
            _, future = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
