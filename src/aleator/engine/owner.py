"""The thread that owns an engine's context: it admits requests, makes steps, and ends what has ended."""

from __future__ import annotations

import atexit
import os
import threading
from collections import Counter
from concurrent.futures import Future
from heapq import heappop, heappush
from itertools import count
from queue import Empty, SimpleQueue
from time import perf_counter
from weakref import WeakSet

from aleator.core.errors import EngineClosed, QueueFull
from aleator.engine.context_calls import Action, ContextCalls, T
from aleator.engine.core import Core
from aleator.engine.frames import clear_frames
from aleator.engine.job import Job
from aleator.engine.options import EngineOptions
from aleator.engine.pace import Pace
from aleator.engine.scheduler import Scheduler
from aleator.engine.request_states import SharedDrafts
from aleator.engine.stats import EngineStats, OnEnd
from aleator.engine.ticket import Ticket
from aleator.engine.waiters import Waiter, wake
from aleator.generate.model_runner import ModelRunner
from aleator.generate.pending_tokens import PendingTokens
from aleator.generate.completion import Completion
from aleator.generate.context import Context
from aleator.generate.token_sampler import HostTokenSampler
from aleator.generate.rollback_check import check_rollback
from aleator.generate.request_state import RequestState

COUNTED = (
    "prompt_tokens",
    "reused_tokens",
    "decode_tokens",
    "sampled_tokens",
    "forced_tokens",
    "context_shifts",
    "draft_n",
    "draft_n_accepted",
    "drafts",
    "prompt_seconds",
    "decode_seconds",
)
"""Of the statistics of requests those that the engine adds up."""

CHOOSING_SECONDS = 0.005
"""Of each step for tokens that take long to choose, such as those before a text's ending; what is not chosen
then goes on in the next step."""

TRIES = 8
"""Errors that are no request's own and that end nothing, one after another, after which an engine gives up."""

PATIENCE = 30.0
"""Seconds that the interpreter's end waits for a step to end."""

_owners: WeakSet[Owner] = WeakSet()
"""Those to close before the interpreter ends."""


class Owner:
    """Everything that only one thread may touch, and the ways in for the others.

    Args:
        context: For this engine alone.
        n_tokens: Tokens of the vocabulary.
        options: Of the engine.
        prompt_cache: Keep what was computed, and reuse it.
        shared: What requests tell one another.
        on_end: Told of every request that ends.

    Attributes:
        shared: What requests tell one another.
    """

    def __init__(
        self,
        context: Context,
        n_tokens: int,
        options: EngineOptions,
        prompt_cache: bool,
        shared: SharedDrafts,
        on_end: OnEnd | None = None,
    ) -> None:
        self._on_end = on_end
        self._context, self._options, self._prompt_cache = context, options, prompt_cache
        self.shared = shared
        self._pace = Pace(options.max_pause)
        # Completions that an error has ended: its frames are emptied after the turn, and those of the
        # thread itself once the engine is closed.
        self._failed: WeakSet[Completion] = WeakSet()
        self._errors: list[BaseException] = []  # of this turn
        # What notes them must not hold this owner, or both live on until a collection.
        failed, errors = self._failed, self._errors

        def note(state: RequestState, error: BaseException) -> None:
            failed.add(state.completion)
            errors.append(error)

        runner = ModelRunner(
            context,
            HostTokenSampler(context.n_threads),
            n_tokens,
            context.cache,
            note,
            keep_pieces=True,
            pending=PendingTokens(CHOOSING_SECONDS),
        )
        self._core = Core(runner, self._new_scheduler(), prompt_cache)
        # All requests that have not ended, by number.  Whoever holds the lock may add one.
        self._tickets: dict[int, Ticket] = {}
        self._known: set[int] = set()  # of these the core knows
        self._lock = threading.Lock()
        self._numbers = count()
        self._mail: SimpleQueue[Ticket | None] = SimpleQueue()
        self._calls = ContextCalls(context)
        self._deadlines: list[tuple[float, int]] = []
        self._counts: Counter[str] = Counter()
        self._ending: Ticket | None = None
        self._failures = 0  # errors since a step was made, or a request ended
        self._now = 0, 0  # running requests, and the positions reserved for them
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="aleator-engine", daemon=True)
        self._thread.start()
        _owners.add(self)

    def _new_scheduler(self) -> Scheduler:
        options = self._options
        return Scheduler(
            options.n_seq_max,
            self._context.n_ctx,
            options.token_budget,
            self._pace,
            reuses=self._prompt_cache,
        )

    # For other threads

    def check(self, state: RequestState) -> None:
        """Refuse what this context cannot do; ParameterError says why."""
        check_rollback(state, self._context)

    def ticket(self, job: Job, state: RequestState, deadline: float | None) -> Ticket:
        """A request that :meth:`submit` takes.

        Args:
            job: As the scheduler sees it.
            state: What makes it.
            deadline: Seconds that it has, from now on.
        """
        end = None if deadline is None else perf_counter() + deadline
        ticket = Ticket(job, state, end, self._mail.put)
        ticket.owner = self._thread.ident or 0
        return ticket

    def submit(self, ticket: Ticket) -> None:
        """Take a request; its job gets its number here.

        Whatever is raised, an interrupt too: a ticket that is cancelled then is made no further.

        Raises:
            QueueFull: too many wait.
            EngineClosed: the engine was closed.
        """
        most = self._options.max_queue + self._options.n_seq_max
        with self._lock:
            if self._closed:
                raise EngineClosed("the engine is closed: make another one")
            if len(self._tickets) >= most:
                self._counts["refused"] += 1
                raise QueueFull(self._options.max_queue)
            number = ticket.job.number = next(self._numbers)
            self._counts["submitted"] += 1
            self._tickets[number] = ticket
            self._mail.put(ticket)

    def visit(self, action: Action[T]) -> Future[T]:
        """See :meth:`aleator.engine.engine.Engine.visit`."""
        with self._lock:
            if self._closed:
                raise EngineClosed("the engine is closed: make another one")
            future = self._calls.submit(action)
            self._mail.put(None)
        return future

    def close(self, patience: float | None = None) -> None:
        """End every request, and the thread; may be called again.

        Args:
            patience: seconds to wait for the thread; None: as long as it takes.
        """
        with self._lock:
            self.shut()
        if threading.current_thread() is not self._thread:
            self._thread.join(patience)
            if self._thread.is_alive():
                return
            for failed in self._failed:
                clear_frames(failed.error)

    def shut(self) -> None:
        """Have the thread end every request, and itself, without waiting for it.

        For the garbage collector, which calls in any thread, in the middle of anything: nothing is locked here.
        """
        self._closed = True
        self._mail.put(None)

    def stay_behind(self) -> None:
        """Make nothing any more, in a fork's child, which has not the thread.

        The thread may have held any lock.
        """
        self._lock = threading.Lock()
        self._closed = True
        for ticket in list(self._tickets.values()):
            ticket.stay_behind(
                EngineClosed(
                    "the engine's thread is in the process that was forked: make another engine"
                )
            )
        self._tickets.clear()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def stats(self) -> EngineStats:
        """Counts so far; those of requests under way included."""
        with self._lock:
            counts, under_way = Counter(self._counts), list(self._tickets.values())
        for ticket in under_way:
            counts.update(_counted(ticket))
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
            cells=self._context.n_ctx,
            cells_reserved=reserved,
        )

    # In the thread

    def _run(self) -> None:
        worked = False
        while not worked:  # again where an interrupt comes between two turns
            try:
                self._work()
                worked = True
            except BaseException as error:
                self._recover(error)
        self._now = 0, 0
        failures = [failed.error for failed in self._failed]
        del self  # this frame is among the errors' own, and cannot be cleared while it runs
        for failure in failures:
            clear_frames(failure)

    def _work(self) -> None:
        while not self._closed:
            try:
                while self._errors:  # of the turn before; its frames run no more
                    clear_frames(self._errors.pop())
                self.turn(wait=True)
            except BaseException as error:
                self._recover(error)
        self._calls.fail_all(EngineClosed("the engine was closed"))
        while self._tickets:
            try:
                for ticket in list(self._tickets.values()):
                    self._core.runner.pending.drop(ticket.state)
                    ticket.completion.interrupt()
                    self._end(ticket)
            except BaseException as error:
                self._recover(error)

    def turn(self, wait: bool = False) -> None:
        """Take in what came, and make one step if there is something to make.

        Args:
            wait: where there is nothing to make, wait until something comes.
        """
        core = self._core
        self._take_in(wait and not (core.scheduler.running or self._calls))
        self._end_expired()
        self._calls.run_all(core.scheduler.free)
        started = perf_counter()
        begun = core.begin()
        for job in begun:
            self._tickets[job.number].began = started
        self._count_running()
        took_part = core.step()
        due: list[Waiter] = []
        try:
            for job in (*took_part, *begun):
                ticket = self._tickets.get(job.number)
                if ticket is None:
                    continue  # among both, and it has ended
                ticket.count_time()
                if ticket.completion.done:
                    self._end(ticket)
                else:
                    ticket.tell(due)
        finally:
            wake(due)
        self._count_running()
        self._failures = 0

    def _count_running(self) -> None:
        scheduler = self._core.scheduler
        self._now = len(scheduler.running), scheduler.reserved

    def _take_in(self, wait: bool) -> None:
        """Look at what other threads have sent."""
        if wait and not len(self._core.scheduler.waiting):
            self._look_at(self._mail.get())
        while True:
            try:
                self._look_at(self._mail.get_nowait())
            except Empty:
                return

    def _look_at(self, ticket: Ticket | None) -> None:
        if ticket is None or ticket.job.number not in self._tickets:
            return  # to be closed, somebody visits, or it has ended
        if ticket.completion.cancelled:
            self._core.runner.pending.drop(ticket.state)
            ticket.completion.interrupt()
        if ticket.completion.done:  # also one that asks for no tokens
            self._end(ticket)
        elif ticket.job.number not in self._known:
            self._known.add(ticket.job.number)
            if ticket.deadline is not None:
                heappush(self._deadlines, (ticket.deadline, ticket.job.number))
            self._core.add(ticket.job, ticket.state)

    def _end_expired(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= perf_counter():
            ticket = self._tickets.get(heappop(self._deadlines)[1])
            if ticket is not None:
                self._core.runner.pending.drop(ticket.state)
                ticket.completion.out_of_time()
                self._end(ticket)

    def _end(self, ticket: Ticket) -> None:
        """A request has ended: free what it holds, and tell its readers."""
        job, completion = ticket.job, ticket.completion
        self._ending = ticket
        self._core.leave(job)
        if job.seq >= 0 and ticket.state.request.options.spec_type == "ngram":
            text = [*ticket.state.request.remaining, *completion.tokens]
            self.shared.texts.add(text, ticket.state.request.where)
        self._known.discard(job.number)
        how = "finished"
        if completion.error is not None:
            how = "failed"
        elif completion.stop_reason == "deadline":
            how = "expired"
        elif completion.stop_reason == "interrupted":
            how = "cancelled"
        with self._lock:
            counted = self._tickets.pop(job.number, None) is not None
            if counted:
                self._counts[how] += 1
                self._counts.update(_counted(ticket))
        ticket.settle()
        self._ending, self._failures = None, 0
        if counted and self._on_end is not None:
            self._on_end(ticket.ended())

    def _recover(self, error: BaseException) -> None:
        """After an error that is nobody's own: end what was being made, and go on with those that wait.

        Where that fails too, again and again, everybody gets the error, and the engine is closed.
        """
        while True:
            try:
                self._failures += 1
                if self._failures > TRIES:
                    self._give_up(error)
                    return
                # First, and before another request ends: it may be no longer among them.
                if self._ending is not None and self._ending.job.number not in self._tickets:
                    self._ending.settle()
                    self._ending = None
                for ticket in list(self._tickets.values()):
                    if ticket.job.seq >= 0:
                        self._core.runner.errors.fail(ticket.state, error)
                self._core.clear(self._new_scheduler())
                self._deadlines, self._known = [], set()
                for ticket in list(self._tickets.values()):
                    if ticket.job.seq >= 0:
                        ticket.job.seq = -1
                        ticket.state.end_speculation()
                        self._end(ticket)
                    else:
                        self._look_at(ticket)
                self._now = 0, 0
                return
            except BaseException as again:
                error = again

    def _give_up(self, error: BaseException) -> None:
        """End every request with an error, without touching the context, and take no more."""
        with self._lock:
            self._closed = True
        if self._ending is not None:
            self._ending.settle()
        for number, ticket in list(self._tickets.items()):
            self._core.runner.errors.fail(ticket.state, error)
            ticket.state.end_speculation()
            ticket.settle()
            with self._lock:
                if self._tickets.pop(number, None) is not None:
                    self._counts["failed"] += 1
                    self._counts.update(_counted(ticket))


@atexit.register
def _close_all() -> None:
    """Native code must not run while the interpreter is taken down; a caller's function that hangs may."""
    for owner in list(_owners):
        owner.close(PATIENCE)


def _stay_behind() -> None:
    for owner in list(_owners):
        owner.stay_behind()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_stay_behind)


def _counted(ticket: Ticket) -> dict[str, float]:
    return {name: getattr(ticket.stats, name) for name in COUNTED}
