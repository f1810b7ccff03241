"""What the engine's thread shares with other threads: requests, and calls on its context."""

from __future__ import annotations

import contextvars
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from aleator.core.errors import AleatorError
from aleator.engine.scheduled_request import ScheduledRequest
from aleator.engine.stats import EndedRequest
from aleator.generate.context import Context
from aleator.generate.generation import Generation, Until
from aleator.generate.request_state import RequestState

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


class Waiter:
    """A future of an event loop that a task awaits until it is woken, within one turn of the loop.

    A task that awaits an asyncio future resumes one turn after the future has its result, and each turn polls
    all sockets.  Here the task resumes at once.
    """

    # Tasks recognise awaitables by this attribute, and set it.
    _asyncio_future_blocking = False

    def __init__(self, until: Until, loop: AbstractEventLoop) -> None:
        self.until, self.loop = until, loop
        self._over = self._cancelled = False
        self._callbacks: list[tuple[Callable[[Waiter], object], contextvars.Context]] = []

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
        """Return None; raise CancelledError if it was cancelled."""
        if self._cancelled:
            from asyncio import CancelledError  # the awaiting code has imported it

            raise CancelledError

    def add_done_callback(
        self, callback: Callable[[Waiter], object], *, context: contextvars.Context | None = None
    ) -> None:
        """Call ``callback`` when it is woken or cancelled; it must not be done yet."""
        self._callbacks.append((callback, context or contextvars.copy_context()))

    def cancel(self, msg: object = None) -> bool:
        """Cancel the waiting task; return whether it was still waiting."""
        if self._over:
            return False
        self._over = self._cancelled = True
        for callback, context in self._taken():
            self.loop.call_soon(callback, self, context=context)
        return True

    def wake(self) -> None:
        """Resume the waiting task now; call in the loop's thread, outside of tasks."""
        if not self._over:  # it was cancelled
            self._over = True
            for callback, context in self._taken():
                context.run(callback, self)

    def _taken(self) -> list[tuple[Callable[[Waiter], object], contextvars.Context]]:
        """The callbacks, held no longer: they hold the task, and frames of its error hold this waiter."""
        taken, self._callbacks = self._callbacks, []
        return taken


def wake(waiters: Sequence[Waiter]) -> None:
    """Wake readers: each event loop is interrupted once, however many wait there."""
    loops: dict[AbstractEventLoop, list[Waiter]] = {}
    for each in waiters:
        loops.setdefault(each.loop, []).append(each)
    for loop, waiting in loops.items():
        with suppress(RuntimeError):  # the loop was closed, so no task waits there
            loop.call_soon_threadsafe(_wake, waiting)


def _wake(waiting: Sequence[Waiter]) -> None:
    for i, each in enumerate(waiting):
        try:
            each.wake()
        except BaseException:  # it ends the loop, and the others must not wait for ever
            each.loop.call_soon(_wake, waiting[i + 1 :])
            raise


class RequestHandle:
    """Lets readers wait for the engine thread's progress on a request and its state.

    ``deadline`` is the ``perf_counter`` time at which the request ends; None: no deadline.
    """

    def __init__(
        self,
        scheduled: ScheduledRequest,
        state: RequestState,
        deadline: float | None,
        woken: Callable[[RequestHandle], None],
    ) -> None:
        self.scheduled, self.state, self.deadline = scheduled, state, deadline
        self.completion, self.stats = state.completion, state.stats
        # Cancels the request when its generation is no longer referenced; None: no generation yet.
        self.generation: weakref.finalize[[], Generation] | None = None
        self.thread_id = 0  # the engine's thread, which must not wait for the request
        self.came = perf_counter()
        # Times at which its prompt was started and its first token drawn
        self.began = self.first = 0.0
        self._woken = woken
        self._settled = False
        self._make_lock()

    def _make_lock(self) -> None:
        # `with` takes the lock itself: entering a Condition runs Python code, and an interrupt there can leave
        # the lock taken.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._blocked = 0  # threads that wait for a change
        self._waiters: list[Waiter] = []

    def make(self, until: Until, timeout: float | None = None) -> None:
        """See :class:`aleator.generate.generation.Stepper`; the engine's own thread would wait for itself."""
        if threading.get_ident() == self.thread_id:
            if until():  # this thread frees the request's place afterwards
                return
            raise AleatorError(
                "the engine's own thread waits for a request that it makes: read it in another thread"
            )
        with self._lock:
            self._blocked += 1
            try:
                self._changed.wait_for(lambda: self._settled or self._ready(until), timeout)
            finally:
                self._blocked -= 1

    async def make_async(self, until: Until) -> None:
        """See :class:`aleator.generate.generation.Stepper`."""
        import asyncio  # the awaiting code has imported it; others do without the import

        while not (self._settled or self._ready(until)):
            loop = asyncio.get_running_loop()
            waiter = Waiter(until, loop)
            with self._lock:
                if self._settled or self._ready(until):
                    return
                self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                with self._lock:
                    self._waiters = [each for each in self._waiters if each is not waiter]
                raise

    def _ready(self, until: Until) -> bool:
        """Whether readers may go on; after the end of a completion :meth:`settle` lets them go on."""
        return not self.completion.done and until()

    def wake(self) -> None:
        """See :class:`aleator.generate.generation.Stepper`."""
        self._woken(self)

    def watch(self, generation: Generation) -> None:
        """Cancel the request when its generation is no longer referenced."""
        self.generation = weakref.finalize(generation, self._abandon)
        self.generation.atexit = False
        if self._settled:  # it has ended meanwhile
            self.generation.detach()

    def _abandon(self) -> None:
        self.completion.cancelled = True
        self.wake()

    def notify(self, due: list[Waiter] | None = None) -> None:
        """Let readers check what they wait for.

        Waiting tasks that may go on are added to ``due``, for the caller to :func:`wake`; None: they are woken
        here.
        """
        ready: list[Waiter] = [] if due is None else due
        with self._lock:
            if self._blocked:
                self._changed.notify_all()
            if self._waiters:
                left: list[Waiter] = []
                for each in self._waiters:
                    (ready if self._settled or self._ready(each.until) else left).append(each)
                self._waiters = left
        if due is None:
            wake(ready)

    def settle(self) -> None:
        """Note that the completion has ended and holds nothing any more."""
        self._settled = True
        if self.generation is not None:
            self.generation.detach()  # otherwise the frames of its error would keep the generation alive
        self.notify()

    def after_fork(self, error: BaseException) -> None:
        """End it with an error in a forked child, where the engine's thread does not exist."""
        self._make_lock()  # the thread may have held it
        self.completion.fail(error)
        self.settle()

    def count_time(self) -> None:
        """Note how long the prompt, or the tokens after it, have taken so far."""
        now, stats = perf_counter(), self.stats
        searching = self.state.search is not None and self.stats.decode_tokens > 0
        if (self.completion.tokens or searching) and not self.first:
            self.first = now
        if self.first:
            stats.prompt_seconds = self.first - self.began
            stats.decode_seconds = now - self.first
        else:
            stats.prompt_seconds = now - self.began

    def ended(self) -> EndedRequest:
        """The report on the request when it has ended."""
        completion, came = self.completion, self.came
        failed = completion.error is not None
        return EndedRequest(
            reason="error" if failed else completion.stop_reason or "interrupted",
            prompt=len(self.state.request.remaining),
            tokens=len(completion.tokens),
            queued=self.began - came if self.began else None,
            first=self.first - came if self.first else None,
            seconds=perf_counter() - came,
        )


T = TypeVar("T")
Action = Callable[[Context, int], T]
"""Called with the context and the id of a scratch sequence, which is cleared afterwards."""


class ContextCalls:
    """Calls that wait for the context: any thread submits them, and only the engine's thread runs them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waiting: deque[tuple[Action[Any], Future[Any]]] = deque()

    def __len__(self) -> int:
        """Number of waiting calls."""
        return len(self._waiting)

    def submit(self, action: Action[T]) -> Future[T]:
        """Queue an action; if it raises, it must have changed nothing.

        If the future is cancelled before the engine reaches it, the action is not run.
        """
        future: Future[T] = Future()
        self._waiting.append((action, future))
        return future

    def run_all(self, seq: int | None) -> None:
        """Run all waiting actions with a scratch sequence; None: no sequence is free, and all go on waiting."""
        while self._waiting and seq is not None:
            action, future = self._waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                made = action(self._context, seq)
            except BaseException as error:  # the error belongs to the caller
                future.set_exception(error)
            else:
                future.set_result(made)
            finally:
                self._context.cache.seq_rm(seq, -1, -1)

    def fail_all(self, error: Exception) -> None:
        """End all waiting futures with an error."""
        while self._waiting:
            _, future = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
