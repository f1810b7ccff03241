"""A request of an engine, as the engine's thread and its readers share it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from time import perf_counter

from aleator.core.errors import AleatorError
from aleator.engine.job import Job
from aleator.engine.stats import EndedRequest
from aleator.engine.waiters import Waiter, wake
from aleator.generate.completion import Completion, Stats
from aleator.generate.generation import Generation
from aleator.generate.request_state import RequestState
from aleator.generate.writing import Until


class RequestHandle:
    """Lets readers wait for what the engine's thread makes.

    Args:
        job: the request as the scheduler sees it.
        state: the request as the runner sees it.
        deadline: moment of ``perf_counter`` at which it ends; None: there is none.
        woken: called with the handle, from any thread, when its completion was cancelled.

    Attributes:
        generation: cancels the request when nobody holds its generation any more; None: there is none yet.
        thread_id: identity of the engine's thread, which must not wait for the request; 0 while there is none.
        came: moment of ``perf_counter`` at which it was submitted.
        began, first: moments of ``perf_counter`` at which its prompt was begun and its first token was drawn.
    """

    def __init__(
        self,
        job: Job,
        state: RequestState,
        deadline: float | None,
        woken: Callable[[RequestHandle], None],
    ) -> None:
        self.job, self.state, self.deadline = job, state, deadline
        self.generation: weakref.finalize[[], Generation] | None = None
        self.thread_id = 0
        self.came = perf_counter()
        self.began = self.first = 0.0
        self._woken = woken
        self._settled = False
        self._make_lock()

    def _make_lock(self) -> None:
        # The lock itself is what `with` takes: entering a Condition is Python code, which an interrupt can
        # leave with the lock taken.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiters: list[Waiter] = []

    @property
    def completion(self) -> Completion:
        """What has been made."""
        return self.state.completion

    @property
    def stats(self) -> Stats:
        """Counts and times of this request alone."""
        return self.state.stats

    def make(self, until: Until, timeout: float | None = None) -> None:
        """See :class:`aleator.generate.writing.Stepper`.

        Raises:
            AleatorError: called in the engine's own thread, which would wait for itself.
        """
        if threading.get_ident() == self.thread_id:
            if until():  # what is left, freeing its place, this thread does afterwards
                return
            raise AleatorError(
                "the engine's own thread waits for a request that it makes: read it in another thread"
            )
        with self._lock:
            self._changed.wait_for(lambda: self._settled or self._ready(until), timeout)

    async def make_async(self, until: Until) -> None:
        """See :class:`aleator.generate.writing.Stepper`."""
        import asyncio  # who awaits has imported it; the others need not wait for that

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
        """Whether readers go on; after the end of a completion :meth:`settle` lets them go on."""
        return not self.completion.done and until()

    def wake(self) -> None:
        """See :class:`aleator.generate.writing.Stepper`."""
        self._woken(self)

    def watch(self, generation: Generation) -> None:
        """Cancel the request when nobody holds its generation any more."""
        self.generation = weakref.finalize(generation, self._abandon)
        self.generation.atexit = False
        if self._settled:  # meanwhile
            self.generation.detach()

    def _abandon(self) -> None:
        self.completion.cancelled = True
        self.wake()

    def notify(self, due: list[Waiter] | None = None) -> None:
        """Let readers check what they wait for.

        Args:
            due: gets the waiting tasks that may go on, for the caller to :func:`wake`; None: wake them here.
        """
        ready: list[Waiter] = [] if due is None else due
        with self._lock:
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
            self.generation.detach()  # or it would hold the generation, by the frames of its error
        self.notify()

    def after_fork(self, error: BaseException) -> None:
        """End it with an error in a forked child, which does not have the engine's thread."""
        self._make_lock()  # the thread may have held it
        self.completion.fail(error)
        self.settle()

    def count_time(self) -> None:
        """Note how long the prompt has taken so far, or the tokens after it."""
        now, stats = perf_counter(), self.stats
        if self.state.completion.tokens and not self.first:
            self.first = now
        if self.first:
            stats.prompt_seconds = self.first - self.began
            stats.decode_seconds = now - self.first
        else:
            stats.prompt_seconds = now - self.began

    def ended(self) -> EndedRequest:
        """The report on the request at its end."""
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
