"""The steps of requests over one context: which requests begin, what a step computes, what is freed.

It knows neither threads nor readers.  :class:`aleator.engine.engine_loop.EngineLoop` makes steps in a thread,
:class:`aleator.engine.run.Run` makes one whenever somebody reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter

import numpy as np

from aleator.cache.cache import Cache
from aleator.cache.pools.attention import AttentionPool
from aleator.core.errors import DeviceOutOfMemory
from aleator.engine.job import Job
from aleator.engine.scheduler import Scheduler
from aleator.generate.model_runner import ModelRunner
from aleator.generate.prompt_chunks import Chunk
from aleator.generate.request_state import Proposal, RequestState

TAKING_IN = 0.04
"""Of the time, what goes into prompts that a tier of the prompt cache had, while others write."""
AT_ONCE = 0.05
"""Seconds that go into them in one go where nobody writes; new and cancelled requests wait no longer."""


class EngineCore:
    """Makes the steps of requests that come and go: the scheduler decides, the runner runs the model."""

    def __init__(self, runner: ModelRunner, scheduler: Scheduler, reuse: bool) -> None:
        self.runner, self.scheduler, self._reuse = runner, scheduler, reuse
        self._cache = runner.context.cache
        self._mixes = isinstance(self._cache.pool, AttentionPool)
        self._states: dict[Job, RequestState] = {}
        # These are counted as EngineStats says.
        self.steps = self.mixed_steps = 0
        self._next_block = 0.0  # when the next block of a tier may be taken in while others write
        self.step_seconds = self.longest_step = self.scheduling_seconds = 0.0

    def add(self, job: Job, state: RequestState) -> None:
        """Let a request wait for its turn; its job has a number that no other has."""
        self._states[job] = state
        self.scheduler.add(job)

    def remove(self, job: Job) -> None:
        """Free what a request holds that has ended or is given up."""
        state = self._states.pop(job, None)
        if state is not None and job.seq >= 0:
            self.runner.beginnings.stop(state)
            heir = self.scheduler.heir(job)
            if heir is not None:
                self._cache.seq_cp(job.seq, heir.seq, 0, -1)
                self._states[heir].tokens = list(state.tokens)
                heir.done = job.done
            self.runner.release(state)
        self.scheduler.remove(job)

    def clear(self, scheduler: Scheduler) -> None:
        """After an error: forget all requests, empty all sequences, and go on with a new scheduler."""
        for seq in range(self.runner.context.n_seq_max):
            self._cache.seq_rm(seq, -1, -1)
        for state in self._states.values():
            state.arrivals = []
            self.runner.sampler.leave(state)
        self.scheduler, self._states = scheduler, {}

    def admit(self) -> list[Job]:
        """Begin the jobs that can begin; returns them.

        If one could not begin, its completion has ended, and the job must be removed (:meth:`remove`).
        """
        started = perf_counter()
        begun = self.scheduler.admit(self)
        for job in begun:  # those that follow others as well, which were not adopted
            state = self._states[job]
            state.seq = job.seq
            self.runner.errors.alone(state, self._adapt, job, state)
        self.scheduling_seconds += perf_counter() - started
        return begun

    def _adapt(self, job: Job, state: RequestState) -> None:
        for seq in (job.seq, *job.others):
            self.runner.context.adapters.set(seq, state.request.options.adapters)

    @property
    def at_work(self) -> bool:
        """Whether there is something to do at once."""
        if self.scheduler.at_work:
            return True
        return any(
            each.ready for job in self.scheduler.reading for each in self._states[job].arrivals
        )

    def take_in(self) -> None:
        """Take in what has come of prompts that a tier of the prompt cache had."""
        arriving = [job for job in self.scheduler.reading if job.arriving]
        now, busy = perf_counter(), self.scheduler.writes
        if busy and now < self._next_block:
            arriving = [job for job in arriving if self._is_late(job)]
        if not arriving:
            return
        end, spent = now + (0.0 if busy else AT_ONCE), 0.0
        for job in arriving:
            state = self._states[job]
            spent += self.runner.beginnings.take_in(state, end - perf_counter())
            job.done, job.beside_done = len(state.tokens), state.beside
            if not state.arrivals:
                self.scheduler.arrived(job)
            elif self.scheduler.advanced(job):  # the next to begin finds it
                self.runner.beginnings.keep(state.seq, state.tokens, job.namespace)
            if spent and perf_counter() >= end:  # who waits for a disk holds nobody up
                break
        self._next_block = perf_counter() + spent / TAKING_IN

    def _is_late(self, job: Job) -> bool:
        """Whether something has come for a job that has waited as long as computing would have taken."""
        return any(each.ready and each.late for each in self._states[job].arrivals)

    def step(self) -> Sequence[Job]:
        """Make one step if there is something to make; returns the jobs that took part.

        Those whose completions have ended must be removed (:meth:`remove`).
        """
        started = perf_counter()
        plan = self.scheduler.plan()
        decided = perf_counter()
        self.scheduling_seconds += decided - started
        rows = self._rows(plan.writing)
        chunks, reading = [], []
        for job, n in plan.chunks:
            followers = [each for each in job.partners if each.follows]
            reading += [job, *followers]
            chunks.append(Chunk(self._states[job], n, [self._states[each] for each in followers]))
        if rows or chunks:
            if self._mixes or not (rows and chunks):
                self._make(rows, chunks)
            else:  # windows and states are rewound by what one batch advances
                self._make(rows, [])
                self._make([], chunks)
        took = perf_counter() - decided
        if rows or chunks:
            self.steps += 1
            self.mixed_steps += bool(rows and chunks)
            self.step_seconds += took
            self.longest_step = max(self.longest_step, took)
        jobs = [*plan.writing, *reading]
        for job in jobs:
            state = self._states[job]
            job.done, job.beside_done = len(state.tokens), state.beside
        # Also if all that write are still choosing their tokens: their share of the time is used up.
        self.scheduler.observe(plan, sum(len(tokens) for _, tokens in rows), took)
        return jobs

    def _make(self, rows: Sequence[Proposal], chunks: Sequence[Chunk]) -> None:
        """Make one batch.  If memory lacks for it, the requests of the chunks end; without chunks, all end."""
        try:
            self.runner.step(rows, chunks)
        except DeviceOutOfMemory as error:
            for state in [chunk.state for chunk in chunks] or [state for state, _ in rows]:
                self.runner.errors.fail(state, error)
            if rows and chunks:
                self._make(rows, [])

    def _rows(self, writing: Sequence[Job]) -> list[Proposal]:
        """The tokens that the writing jobs decode next."""
        going: list[RequestState] = []
        searches: list[Proposal] = []

        def make_room(state: RequestState) -> None:
            full = len(state.tokens) == state.n_ctx
            if full and state.request.options.context_shift:
                self._cache.unshare(state.seq)  # or others would be moved with it
            if self.runner.make_room(state):
                going.append(state)

        for job in writing:
            state = self._states[job]
            if state in self.runner.pending:  # it takes part if its token is chosen now
                self.runner.errors.alone(state, self.runner.choose, state)
            if state.completion.done or state in self.runner.pending:
                continue
            if state.search is not None:
                searches.append((state, state.search.ends))
            else:
                self.runner.errors.alone(state, make_room, state)
        return [*self.runner.proposer.propose(going), *searches]

    # For the scheduler

    def adopt(self, job: Job) -> int:
        """See :class:`aleator.engine.scheduler.Cells`."""
        state = self._states[job]
        state.seq = job.seq
        if state.guidance is not None:
            (state.guidance.seq,) = job.others
        if state.search is not None:
            state.search.begin(self._cache, (job.seq, *job.others))
        try:
            held = self.runner.enter(state, self._reuse)
        except Exception as error:
            self.runner.errors.fail(state, error)
            self.drop(job)
            return 0
        job.beside_done, job.arriving = state.beside, bool(state.arrivals)
        return held

    def drop(self, job: Job) -> None:
        """See :class:`aleator.engine.scheduler.Cells`."""
        state = self._states[job]
        self.runner.empty(state)
        job.arriving = False
        state.stats.reused_tokens = 0

    def held(self) -> int | None:
        """See :class:`aleator.engine.scheduler.Cells`."""
        others = [seq for job in self.scheduler.running.values() for seq in job.others]
        return cells_held(self._cache, [*self.scheduler.running, *others])


def cells_held(cache: Cache, seqs: Iterable[int]) -> int | None:
    """How many cells some sequences hold, each counted once; None for caches that do not consist of cells."""
    pool = cache.pool
    if not isinstance(pool, AttentionPool):
        return None
    lists = [pool.cells.seq_cell_list(seq) for seq in seqs]
    return len(np.unique(np.concatenate(lists))) if lists else 0
