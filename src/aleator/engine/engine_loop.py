"""The loop of an engine's thread: it admits requests, makes steps, and ends requests."""

from __future__ import annotations

import atexit
import os
import threading
from collections import Counter
from concurrent.futures import Future
from functools import partial
from heapq import heappop, heappush
from itertools import count
from queue import Empty, SimpleQueue
from time import perf_counter
from weakref import WeakSet

from aleator.core.errors import EngineClosed, QueueFull
from aleator.engine.engine_core import EngineCore
from aleator.engine.error_frames import clear_frames
from aleator.engine.options import EngineOptions
from aleator.engine.pace import Pace
from aleator.engine.request_handle import Action, ContextCalls, RequestHandle, T, Waiter, wake
from aleator.engine.run import engine_token_sampler
from aleator.engine.scheduled_request import ScheduledRequest
from aleator.engine.scheduler import Scheduler
from aleator.engine.stats import EngineStats, OnEnd
from aleator.generate.completion import Stats
from aleator.generate.context import Context, Prefixes
from aleator.generate.model_runner import ModelRunner
from aleator.generate.request_state import RequestState
from aleator.generate.speculative import SharedDrafts
from aleator.generate.token_sampler import PendingTokens

COUNTED = Stats.__annotations__.keys() & EngineStats.__annotations__.keys()
"""The statistics of requests that the engine adds up."""

CHOOSING_SECONDS = 0.005
"""Each step spends this long on tokens that take long to choose, such as those before the end of a constrained
text; the next step goes on with what is not chosen then."""

ENDED_BY = {"deadline": "expired", "interrupted": "cancelled"}
"""Where requests with these stop reasons are counted; the others have finished."""

TRIES = 8
"""An engine gives up after this many errors in a row that belong to no request and end none."""

POLL = 0.05
"""Seconds after which deadlines are looked at again where all that run wait for a tier of the prompt cache."""

CLOSE_TIMEOUT = 30.0
"""When the interpreter ends, it waits this many seconds for a step to end."""

_loops: WeakSet[EngineLoop] = WeakSet()
"""The loops to close before the interpreter ends."""


class EngineLoop:
    """Runs an engine in a thread of its own, and takes requests from other threads.

    Nothing else uses the context.  ``shared`` is what the requests share for drafting; ``on_end`` is called
    with every request that ends.
    """

    def __init__(
        self,
        context: Context,
        n_tokens: int,
        options: EngineOptions,
        prompt_cache: bool,
        shared: SharedDrafts,
        on_end: OnEnd | None = None,
        prefixes: Prefixes | None = None,
    ) -> None:
        self._on_end = on_end
        self.context, self._options, self._prompt_cache = context, options, prompt_cache
        self.shared = shared
        self._pace = Pace(options.max_pause)
        # Errors that have ended requests of this iteration; their frames are cleared after it.
        self._errors: list[BaseException] = []
        # `note` must not hold this loop, or both would live on until a garbage collection.
        errors = self._errors

        def note(state: RequestState, error: BaseException) -> None:
            errors.append(error)

        mail: SimpleQueue[RequestHandle | None] = SimpleQueue()
        runner = ModelRunner(
            context,
            engine_token_sampler(context, n_tokens),
            n_tokens,
            prefixes or context.cache,
            note,
            keep_pieces=True,
            pending=PendingTokens(CHOOSING_SECONDS),
            wake=partial(mail.put, None),
        )
        self._core = EngineCore(runner, self._new_scheduler(), prompt_cache)
        # All requests that have not ended, by number.  Whoever holds the lock may add one.
        self._handles: dict[int, RequestHandle] = {}
        self._known: set[int] = set()  # of these the core knows
        self._lock = threading.Lock()
        self._numbers = count()
        self._mail = mail
        self._calls = ContextCalls(context)
        self._deadlines: list[tuple[float, int]] = []
        self._counts: Counter[str] = Counter()
        self._ending: RequestHandle | None = None
        self._failures = 0  # errors since a step was made, or a request ended
        self._now = 0, 0  # running requests, and the positions reserved for them
        self.closed = False
        self._thread = threading.Thread(target=self._run, name="aleator-engine", daemon=True)
        self._thread.start()
        _loops.add(self)

    def _new_scheduler(self) -> Scheduler:
        options = self._options
        return Scheduler(
            options.n_seq_max,
            self.context.n_ctx,
            options.token_budget,
            self._pace,
            reuses=self._prompt_cache,
        )

    # For other threads

    def make_handle(
        self, scheduled: ScheduledRequest, state: RequestState, deadline: float | None
    ) -> RequestHandle:
        """Make the handle that :meth:`submit` takes; the deadline is in seconds from now on."""
        end = None if deadline is None else perf_counter() + deadline
        handle = RequestHandle(scheduled, state, end, self._mail.put)
        handle.thread_id = self._thread.ident or 0
        return handle

    def submit(self, handle: RequestHandle) -> None:
        """Take a request, and number it.

        Whatever is raised, even an interrupt: the request goes no further if it is cancelled then.

        Raises:
            QueueFull: too many wait.
            EngineClosed: the engine was closed.
        """
        with self._lock:
            self._check_queue(1)
            number = handle.scheduled.number = next(self._numbers)
            self._counts["submitted"] += 1
            self._handles[number] = handle
        self._core.runner.prefix_reuse.look_up(handle.state)  # while it waits for its turn
        self._mail.put(handle)

    def check_queue(self, n: int) -> None:
        """Raise what :meth:`submit` would, were so many requests submitted now."""
        with self._lock:
            self._check_queue(n)

    def _check_queue(self, n: int) -> None:
        if self.closed:
            raise EngineClosed("the engine is closed: make another one")
        if len(self._handles) + n > self._options.max_queue + self._options.n_seq_max:
            self._counts["refused"] += 1
            raise QueueFull(self._options.max_queue)

    def visit(self, action: Action[T]) -> Future[T]:
        """See :meth:`aleator.engine.engine.Engine.visit`."""
        with self._lock:
            if self.closed:
                raise EngineClosed("the engine is closed: make another one")
            future = self._calls.submit(action)
            self._mail.put(None)
        return future

    def close(self, patience: float | None = None) -> None:
        """End every request, and the thread; may be called again.

        Waits ``patience`` seconds for the thread; None: as long as it takes.
        """
        with self._lock:
            self.close_without_waiting()
        if threading.current_thread() is not self._thread:
            self._thread.join(patience)

    def close_without_waiting(self) -> None:
        """Have the thread end every request, and itself, without waiting for it.

        For the garbage collector, which calls in any thread, in the middle of anything: nothing is locked here.
        """
        self.closed = True
        self._mail.put(None)

    def after_fork(self) -> None:
        """Close the loop in a forked child, which does not have the thread.

        The thread may have held any lock.
        """
        self._lock = threading.Lock()
        self.closed = True
        for handle in list(self._handles.values()):
            handle.after_fork(
                EngineClosed(
                    "the engine's thread is in the process that was forked: make another engine"
                )
            )
        self._handles.clear()

    @property
    def stats(self) -> EngineStats:
        """Counts so far, those of running requests included."""
        with self._lock:
            counts, under_way = Counter(self._counts), list(self._handles.values())
        for handle in under_way:
            counts.update(_counted(handle))
        running, reserved = self._now
        return EngineStats(
            **counts,
            steps=self._core.steps,
            mixed_steps=self._core.mixed_steps,
            step_seconds=self._core.step_seconds,
            longest_step=self._core.longest_step,
            scheduling_seconds=self._core.scheduling_seconds,
            waiting=max(0, len(under_way) - running),  # counted at other moments
            running=running,
            cells=self.context.n_ctx,
            cells_reserved=reserved,
        )

    # In the thread

    def _run(self) -> None:
        worked = False
        while not worked:  # again where an interrupt comes between two iterations
            try:
                self._work()
                worked = True
            except BaseException as error:
                self._recover(error)
        self._now = 0, 0
        self._clear_errors()
        del self  # this frame, too, is among the errors' own, which readers may keep

    def _work(self) -> None:
        while not self.closed:
            try:
                self._clear_errors()
                self._iterate()
            except BaseException as error:
                self._recover(error)
        self._end_all()
        del self  # as in `_run`

    def _clear_errors(self) -> None:
        """Clear the frames of the errors of the iteration before, which run no more."""
        while self._errors:
            clear_frames(self._errors.pop())

    def _end_all(self) -> None:
        """End every request: the engine was closed."""
        self._calls.fail_all(EngineClosed("the engine was closed"))
        while self._handles:
            try:
                for handle in list(self._handles.values()):
                    self._core.runner.pending.drop(handle.state)
                    handle.completion.break_off("interrupted")
                    self._end(handle)
            except BaseException as error:
                self._recover(error)

    def _iterate(self) -> None:
        """Take in what other threads sent, and make one step; if no request is running, wait for one."""
        core = self._core
        can_call = self._calls and core.scheduler.free is not None
        self._take_in(not (core.has_work or can_call))
        self._end_expired()
        self._calls.run_all(core.scheduler.free)
        started = perf_counter()
        begun = core.admit()
        for scheduled in begun:
            self._handles[scheduled.number].began = started
        core.take_arrived()
        self._count_running()
        took_part = core.step()
        due: list[Waiter] = []
        try:
            for scheduled in (*took_part, *begun):
                handle = self._handles.get(scheduled.number)
                if handle is None:
                    continue  # among both, and it has ended
                handle.count_time()
                if handle.completion.done:
                    self._end(handle)
                else:
                    handle.notify(due)
        finally:
            wake(due)
        self._count_running()
        self._failures = 0

    def _count_running(self) -> None:
        scheduler = self._core.scheduler
        self._now = len(scheduler.running), scheduler.reserved

    def _take_in(self, wait: bool) -> None:
        """Take in what other threads have sent."""
        scheduler = self._core.scheduler
        try:
            if wait and (scheduler.running or not len(scheduler.waiting)):
                self._look_at(self._mail.get(timeout=POLL if scheduler.running else None))
            while True:
                self._look_at(self._mail.get_nowait())
        except Empty:
            return

    def _look_at(self, handle: RequestHandle | None) -> None:
        if handle is None or handle.scheduled.number not in self._handles:
            return  # to be closed, somebody visits, or it has ended
        if handle.completion.cancelled:
            self._core.runner.pending.drop(handle.state)
            handle.completion.break_off("interrupted")
        if handle.completion.done:  # also one that asks for no tokens
            self._end(handle)
        elif handle.scheduled.number not in self._known:
            self._known.add(handle.scheduled.number)
            if handle.deadline is not None:
                heappush(self._deadlines, (handle.deadline, handle.scheduled.number))
            self._core.add(handle.scheduled, handle.state)

    def _end_expired(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= perf_counter():
            handle = self._handles.get(heappop(self._deadlines)[1])
            if handle is not None:
                self._core.runner.pending.drop(handle.state)
                handle.completion.break_off("deadline")
                self._end(handle)

    def _end(self, handle: RequestHandle) -> None:
        """Free what an ended request holds, and wake its readers."""
        scheduled, completion = handle.scheduled, handle.completion
        self._ending = handle
        self._core.remove(scheduled)
        if scheduled.seq >= 0 and handle.state.request.options.spec_type == "ngram":
            text = [*handle.state.request.remaining, *completion.tokens]
            self.shared.history.add(text, handle.state.request.cache_namespace)
        self._known.discard(scheduled.number)
        how = ENDED_BY.get(completion.stop_reason or "", "finished")
        if completion.error is not None:
            how = "failed"
        with self._lock:
            counted = self._handles.pop(scheduled.number, None) is not None
            if counted:
                self._counts[how] += 1
                self._counts.update(_counted(handle))
        handle.settle()
        self._ending, self._failures = None, 0
        if counted and self._on_end is not None:
            self._on_end(handle.ended())

    def _recover(self, error: BaseException) -> None:
        """After an error that belongs to no request: end all running requests, and go on with those that wait.

        If that fails too, :data:`TRIES` times in a row, all requests end with the error and the engine closes.
        """
        while True:
            try:
                self._failures += 1
                if self._failures > TRIES:
                    self._fail_all(error)
                    return
                # First, and before another request ends: it may be no longer among them.
                if self._ending is not None and self._ending.scheduled.number not in self._handles:
                    self._ending.settle()
                    self._ending = None
                handles = list(self._handles.values())
                failed = [each.state for each in handles if each.scheduled.seq >= 0]
                self._core.runner.errors.fail_all(failed, error)
                self._core.clear(self._new_scheduler())
                self._deadlines, self._known = [], set()
                for handle in list(self._handles.values()):
                    if handle.scheduled.seq >= 0:
                        handle.scheduled.seq = -1
                        handle.state.end_speculation()
                        self._end(handle)
                    else:
                        self._look_at(handle)
                self._now = 0, 0
                return
            except BaseException as again:
                error = again
                self._errors.append(error)  # this frame is among its own

    def _fail_all(self, error: BaseException) -> None:
        """End all requests with an error, without touching the context, and take no more."""
        with self._lock:
            self.closed = True
        if self._ending is not None:
            self._ending.settle()
        handles = list(self._handles.items())
        self._core.runner.errors.fail_all([handle.state for _, handle in handles], error)
        for number, handle in handles:
            handle.state.end_speculation()
            handle.settle()
            with self._lock:
                if self._handles.pop(number, None) is not None:
                    self._counts["failed"] += 1
                    self._counts.update(_counted(handle))


@atexit.register
def _close_all() -> None:
    """Native code must not run while the interpreter shuts down; a caller's function that hangs may."""
    for loop in list(_loops):
        loop.close(CLOSE_TIMEOUT)


def _after_fork() -> None:
    for loop in list(_loops):
        loop.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)


def _counted(handle: RequestHandle) -> dict[str, float]:
    return {name: getattr(handle.stats, name) for name in COUNTED}
