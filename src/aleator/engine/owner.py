"""The thread that owns an engine's context: it admits requests, makes steps, and ends what has ended."""

from __future__ import annotations

import atexit
import threading
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from queue import Empty, SimpleQueue
from time import perf_counter
from types import FrameType
from weakref import WeakSet

import numpy as np

from aleator.cache.cache import Cache
from aleator.cache.pools.attention import AttentionPool
from aleator.core.errors import EngineClosed, QueueFull
from aleator.engine.ended import OnEnd
from aleator.engine.job import Job
from aleator.engine.options import EngineOptions
from aleator.engine.pace import Pace
from aleator.engine.scheduler import Scheduler
from aleator.engine.stats import EngineStats
from aleator.engine.ticket import Ticket
from aleator.engine.visits import Action, T, Visits
from aleator.generate.advance import Advance, check_rewinds
from aleator.generate.completion import Completion
from aleator.generate.context import Context
from aleator.generate.drawing import HostDrawing
from aleator.generate.slot import Slot
from aleator.generate.speculation.ngrams import Texts

COUNTED = (
    "prompt_tokens",
    "reused_tokens",
    "decode_tokens",
    "sampled_tokens",
    "forced_tokens",
    "context_shifts",
    "draft_n",
    "draft_n_accepted",
)
"""Of the statistics of requests those that the engine adds up."""

TRIES = 8
"""Errors that are no request's own and that end nothing, one after another, after which an engine gives up."""

_owners: WeakSet[Owner] = WeakSet()
"""Those to close before the interpreter ends."""


class Owner:
    """Everything that only one thread may touch, and the ways in for the others.

    Args:
        context: for this engine alone.
        n_tokens: tokens of the vocabulary.
        options: of the engine.
        prompt_cache: keep what was computed, and reuse it.
        on_end: told of every request that ends.

    Attributes:
        texts: of requests that have ended, from which others guess.
    """

    def __init__(
        self,
        context: Context,
        n_tokens: int,
        options: EngineOptions,
        prompt_cache: bool,
        on_end: OnEnd | None = None,
    ) -> None:
        self._on_end = on_end
        self._context, self._options, self._prompt_cache = context, options, prompt_cache
        self._cells = context.n_ctx
        self._mixes = isinstance(context.cache.pool, AttentionPool)
        self._advance = Advance(context, HostDrawing(), n_tokens, context.cache, self._fail)
        self.texts = Texts()
        self._pace = Pace(options.max_pause)
        self._scheduler = self._new_scheduler()
        # All requests that have not ended, by number.  Whoever holds the lock may add one.
        self._tickets: dict[int, Ticket] = {}
        self._by_slot: dict[Slot, Ticket] = {}
        self._lock = threading.Lock()
        self._numbers = count()
        self._mail: SimpleQueue[Ticket | None] = SimpleQueue()
        self._visits = Visits(context)
        self._deadlines: list[tuple[float, int]] = []
        self._counts: Counter[str] = Counter()
        self._step_seconds = self._longest_step = self._scheduling_seconds = 0.0
        self._ending: Ticket | None = None
        self._failures = 0  # errors since a step was made, or a request ended
        self._failed: WeakSet[Completion] = WeakSet()
        self._now = 0, 0  # running requests, and the positions reserved for them
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="aleator-engine", daemon=True)
        self._thread.start()
        _owners.add(self)

    def _new_scheduler(self) -> Scheduler:
        options = self._options
        return Scheduler(options.n_seq_max, self._cells, options.token_budget, self._pace)

    # For other threads

    def check(self, slot: Slot) -> None:
        """Refuse what this context cannot do; ParameterError says why."""
        check_rewinds(slot, self._context)

    def submit(self, job: Job, slot: Slot, deadline: float | None) -> Ticket:
        """Take a request.

        Args:
            job: as the scheduler sees it; it gets its number here.
            slot: what makes it.
            deadline: seconds that it has.

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
            job.number = next(self._numbers)
            end = None if deadline is None else perf_counter() + deadline
            ticket = Ticket(job, slot, end, self._mail.put)
            ticket.owner = self._thread.ident or 0
            self._counts["submitted"] += 1
            try:
                self._tickets[job.number] = ticket
                self._mail.put(ticket)
            except (
                BaseException
            ):  # an interrupt: nobody will read it, and it must not stay for ever
                ticket.completion.cancelled = True
                self._mail.put(ticket)
                raise
        return ticket

    def visit(self, action: Action[T]) -> Future[T]:
        """See :meth:`aleator.engine.engine.Engine.visit`."""
        with self._lock:
            if self._closed:
                raise EngineClosed("the engine is closed: make another one")
            future = self._visits.ask(action)
            self._mail.put(None)
        return future

    def close(self) -> None:
        """End every request, and the thread; may be called again."""
        with self._lock:
            self.shut()
        if threading.current_thread() is not self._thread:
            self._thread.join()
            for failed in self._failed:
                clear_frames(failed.error)

    def shut(self) -> None:
        """Have the thread end every request, and itself, without waiting for it.

        For the garbage collector, which calls in any thread, in the middle of anything: nothing is locked here.
        """
        self._closed = True
        self._mail.put(None)

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
            step_seconds=self._step_seconds,
            longest_step=self._longest_step,
            scheduling_seconds=self._scheduling_seconds,
            waiting=max(0, len(under_way) - running),  # counted at other moments
            running=running,
            cells=self._cells,
            cells_reserved=reserved,
        )

    # In the thread

    def _run(self) -> None:
        self._work()
        self._now = 0, 0
        errors = [failed.error for failed in self._failed]
        del self  # this frame is among the errors' own, and cannot be cleared while it runs
        for error in errors:
            clear_frames(error)

    def _work(self) -> None:
        while not self._closed:
            try:
                self.turn(wait=True)
            except BaseException as error:
                self._recover(error)
        self._visits.refuse(EngineClosed("the engine was closed"))
        while self._tickets:
            try:
                for ticket in list(self._tickets.values()):
                    ticket.completion.interrupt()
                    self._end(ticket)
            except BaseException as error:
                self._recover(error)

    def turn(self, wait: bool = False) -> None:
        """Take in what came, and make one step if there is something to make.

        Args:
            wait: where there is nothing to make, wait until something comes.
        """
        self._take_in(wait and not (self._scheduler.running or self._visits))
        self._end_expired()
        self._visits.make(self._scheduler.free)
        started = perf_counter()
        for job in self._scheduler.admit(self):
            ticket = self._tickets[job.number]
            ticket.began = started
        self._now = len(self._scheduler.running), self._scheduler.reserved
        self._step(started)
        self._now = len(self._scheduler.running), self._scheduler.reserved
        self._failures = 0

    def _take_in(self, wait: bool) -> None:
        """Look at what other threads have sent."""
        if wait and not len(self._scheduler.waiting):
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
            ticket.completion.interrupt()
        if ticket.completion.done:  # also one that asks for no tokens
            self._end(ticket)
        elif ticket.slot not in self._by_slot:
            self._by_slot[ticket.slot] = ticket
            if ticket.deadline is not None:
                heappush(self._deadlines, (ticket.deadline, ticket.job.number))
            self._scheduler.add(ticket.job)

    def _end_expired(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= perf_counter():
            ticket = self._tickets.get(heappop(self._deadlines)[1])
            if ticket is not None:
                ticket.completion.out_of_time()
                self._end(ticket)

    def _step(self, started: float) -> None:
        scheduler, advance = self._scheduler, self._advance
        plan = scheduler.plan()
        scheduled = perf_counter()
        self._scheduling_seconds += scheduled - started
        rows = self._rows(job.number for job in plan.writing)
        chunks = [(self._tickets[job.number].slot, n) for job, n in plan.chunks]
        n_rows = sum(len(tokens) for _, tokens in rows)
        if rows or chunks:
            if self._mixes:
                advance.step(rows, chunks)
            else:  # windows and states are rewound by what one batch advances
                if rows:
                    advance.step(rows)
                if chunks:
                    advance.step([], chunks)
            took = perf_counter() - scheduled
            self._counts["steps"] += 1
            self._counts["mixed_steps"] += bool(rows and chunks)
            self._step_seconds += took
            self._longest_step = max(self._longest_step, took)
        jobs = [*plan.writing, *(job for job, _ in plan.chunks)]
        for job in jobs:
            job.done = len(self._tickets[job.number].slot.tokens)
        scheduler.observe(plan, n_rows, perf_counter() - scheduled)
        for job in jobs:
            ticket = self._tickets[job.number]
            ticket.count_time()
            if ticket.completion.done:
                self._end(ticket)
            else:
                ticket.tell()

    def _rows(self, numbers: Iterable[int]) -> list[tuple[Slot, list[int]]]:
        """The tokens that those who write decode next."""
        slots = [self._tickets[number].slot for number in numbers]
        rows: list[tuple[Slot, list[int]]] = []

        def add(slot: Slot) -> None:
            full = len(slot.tokens) == slot.n_ctx
            if full and slot.request.options.context_shift:
                self._context.cache.unshare(slot.seq)  # or others would be moved with it
            if self._advance.make_room(slot):
                rows.append((slot, self._advance.ahead(slot, len(slots))))

        for slot in slots:
            self._advance.alone(slot, add, slot)
        return rows

    def _fail(self, slot: Slot, error: BaseException) -> None:
        slot.completion.fail(error)
        self._failed.add(slot.completion)

    def _end(self, ticket: Ticket) -> None:
        """A request has ended: free what it holds, and tell its readers."""
        job, completion = ticket.job, ticket.completion
        self._ending = ticket
        if job.seq >= 0:
            self._advance.release(ticket.slot)
            if ticket.slot.request.options.spec_type == "ngram":
                text = [*ticket.slot.request.remaining, *completion.tokens]
                self.texts.add(text, ticket.slot.request.where)
        self._scheduler.remove(job)
        self._by_slot.pop(ticket.slot, None)
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
                        self._fail(ticket.slot, error)
                for seq in range(self._options.n_seq_max):
                    self._context.cache.seq_rm(seq, -1, -1)
                self._scheduler, self._deadlines = self._new_scheduler(), []
                self._by_slot = {}
                for ticket in list(self._tickets.values()):
                    if ticket.job.seq >= 0:
                        ticket.job.seq, ticket.slot.speculation = -1, None
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
            self._fail(ticket.slot, error)
            ticket.slot.speculation = None
            ticket.settle()
            with self._lock:
                if self._tickets.pop(number, None) is not None:
                    self._counts["failed"] += 1
                    self._counts.update(_counted(ticket))

    # For the scheduler

    def adopt(self, job: Job) -> int:
        """See :class:`aleator.engine.scheduler.Cells`."""
        ticket = self._tickets[job.number]
        slot = ticket.slot
        slot.seq = job.seq
        try:
            return self._advance.enter(slot, self._prompt_cache and job.shares)
        except Exception as error:
            self._fail(slot, error)
            self._mail.put(ticket)  # to end it, as soon as the scheduler has decided
            self._context.cache.seq_rm(job.seq, -1, -1)
            slot.tokens = []
            return 0

    def drop(self, job: Job) -> None:
        """See :class:`aleator.engine.scheduler.Cells`."""
        self._context.cache.seq_rm(job.seq, -1, -1)
        self._tickets[job.number].slot.stats.reused_tokens = 0

    def held(self) -> int | None:
        """See :class:`aleator.engine.scheduler.Cells`."""
        return cells_held(self._context.cache, self._scheduler.running)


@atexit.register
def _close_all() -> None:
    """Native code must not run while the interpreter is taken down."""
    for owner in list(_owners):
        owner.close()


def cells_held(cache: Cache, seqs: Iterable[int]) -> int | None:
    """Cells that some sequences hold, each counted once; None where layers hold other things than cells."""
    pool = cache.pool
    if not isinstance(pool, AttentionPool):
        return None
    lists = [pool.cells.seq_cell_list(seq) for seq in seqs]
    return len(np.unique(np.concatenate(lists))) if lists else 0


def _counted(ticket: Ticket) -> dict[str, int]:
    return {name: getattr(ticket.stats, name) for name in COUNTED}


def clear_frames(error: BaseException | None) -> None:
    """Let an error's frames go that were the engine's: whoever keeps the error would keep the context."""
    trace = None if error is None else error.__traceback__
    while trace is not None:
        frame: FrameType | None = trace.tb_frame
        while frame is not None:
            if frame.f_globals.get("__name__") in (__name__, Advance.__module__):
                with suppress(RuntimeError):  # it is the one that runs
                    frame.clear()
            frame = frame.f_back
        trace = trace.tb_next
