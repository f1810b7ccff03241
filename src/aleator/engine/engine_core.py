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
from aleator.engine.scheduled_request import ScheduledRequest
from aleator.engine.scheduler import Scheduler
from aleator.generate.model_runner import ModelRunner
from aleator.generate.prompt_chunks import Chunk
from aleator.generate.request_state import Proposal, RequestState

LOADING_SHARE = 0.04
"""Of the time, what goes into prompts that a tier of the prompt cache had, while others write."""
IDLE_SLICE = 0.05
"""Seconds that go into them in one go where nobody writes; new and cancelled requests wait no longer."""


class EngineCore:
    """Makes the steps of requests that come and go: the scheduler decides, the runner runs the model."""

    def __init__(self, runner: ModelRunner, scheduler: Scheduler, reuse: bool) -> None:
        self.runner, self.scheduler, self._reuse = runner, scheduler, reuse
        self._cache = runner.context.cache
        self._mixes = isinstance(self._cache.pool, AttentionPool)
        self._states: dict[ScheduledRequest, RequestState] = {}
        # These are counted as EngineStats says.
        self.steps = self.mixed_steps = 0
        self._next_block = 0.0  # when the next block of a tier may be taken in while others write
        self.step_seconds = self.longest_step = self.scheduling_seconds = 0.0

    def add(self, request: ScheduledRequest, state: RequestState) -> None:
        """Let a request wait for its turn; its number is like no other."""
        self._states[request] = state
        self.scheduler.add(request)

    def remove(self, request: ScheduledRequest) -> None:
        """Free what a request holds that has ended or is given up."""
        state = self._states.pop(request, None)
        if state is not None and request.seq >= 0:
            self.runner.prefix_reuse.stop(state)
            successor = self.scheduler.successor(request)
            if successor is not None:
                self._cache.seq_cp(request.seq, successor.seq, 0, -1)
                self._states[successor].tokens = list(state.tokens)
                successor.done = request.done
            self.runner.release(state)
        self.scheduler.remove(request)

    def clear(self, scheduler: Scheduler) -> None:
        """After an error: forget all requests, empty all sequences, and go on with a new scheduler."""
        for seq in range(self.runner.context.n_seq_max):
            self._cache.seq_rm(seq, -1, -1)
        for request, state in self._states.items():
            request.partners = []  # they hold one another
            state.prefix_loads = []
            self.runner.sampler.leave(state)
        self.scheduler, self._states = scheduler, {}

    def admit(self) -> list[ScheduledRequest]:
        """Begin the requests that can begin; returns them.

        If one could not begin, its completion has ended, and it must be removed (:meth:`remove`).
        """
        started = perf_counter()
        begun = self.scheduler.admit(self)
        for request in begun:  # also those that follow others, which did not reuse a prefix
            state = self._states[request]
            state.seq = request.seq
            self.runner.errors.run_for(state, self._adapt, request, state)
        self.scheduling_seconds += perf_counter() - started
        return begun

    def _adapt(self, request: ScheduledRequest, state: RequestState) -> None:
        for seq in (request.seq, *request.others):
            self.runner.context.adapters.set(seq, state.request.options.adapters)

    @property
    def has_work(self) -> bool:
        """Whether there is something to do at once."""
        if self.scheduler.has_work:
            return True
        return any(
            each.ready
            for request in self.scheduler.prefilling
            for each in self._states[request].prefix_loads
        )

    def take_arrived(self) -> None:
        """Take in what has come of prompts that a tier of the prompt cache had."""
        loading = [request for request in self.scheduler.prefilling if request.loading]
        now, busy = perf_counter(), self.scheduler.decodes
        if busy and now < self._next_block:
            loading = [request for request in loading if self._is_late(request)]
        if not loading:
            return
        end, spent = now + (0.0 if busy else IDLE_SLICE), 0.0
        for request in loading:
            state = self._states[request]
            spent += self.runner.prefix_reuse.take_arrived(state, end - perf_counter())
            request.done, request.second_done = len(state.tokens), state.second_positions
            if not state.prefix_loads:
                self.scheduler.loaded(request)
            elif self.scheduler.advanced(request):  # the next to begin finds it
                self.runner.prefix_reuse.keep(state.seq, state.tokens, request.namespace)
            if spent and perf_counter() >= end:  # who waits for a disk holds nobody up
                break
        self._next_block = perf_counter() + spent / LOADING_SHARE

    def _is_late(self, request: ScheduledRequest) -> bool:
        """Whether something has come for a request that has waited as long as computing would have taken."""
        return any(each.ready and each.late for each in self._states[request].prefix_loads)

    def step(self) -> Sequence[ScheduledRequest]:
        """Make one step if there is something to make; returns the requests that took part.

        Those whose completions have ended must be removed (:meth:`remove`).
        """
        started = perf_counter()
        plan = self.scheduler.plan()
        decided = perf_counter()
        self.scheduling_seconds += decided - started
        rows = self._rows(plan.decoding)
        chunks, prefilling = [], []
        for request, n in plan.chunks:
            followers = [each for each in request.partners if each.follows]
            prefilling += [request, *followers]
            chunks.append(
                Chunk(self._states[request], n, [self._states[each] for each in followers])
            )
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
        requests = [*plan.decoding, *prefilling]
        for request in requests:
            state = self._states[request]
            request.done, request.second_done = len(state.tokens), state.second_positions
        # Also if all that write are still choosing their tokens: their share of the time is used up.
        self.scheduler.observe(plan, sum(len(tokens) for _, tokens in rows), took)
        return requests

    def _make(self, rows: Sequence[Proposal], chunks: Sequence[Chunk]) -> None:
        """Make one batch.  If memory lacks for it, the requests of the chunks end; without chunks, all end."""
        try:
            self.runner.step(rows, chunks)
        except DeviceOutOfMemory as error:
            failed = [chunk.state for chunk in chunks] or [state for state, _ in rows]
            self.runner.errors.fail_all(failed, error)
            if rows and chunks:
                self._make(rows, [])

    def _rows(self, decoding: Sequence[ScheduledRequest]) -> list[Proposal]:
        """The tokens that these requests decode next."""
        going: list[RequestState] = []
        searches: list[Proposal] = []

        def make_room(state: RequestState) -> None:
            full = len(state.tokens) == state.n_ctx
            if full and state.request.options.context_shift:
                self._cache.unshare(state.seq)  # or others would be moved with it
            if self.runner.make_room(state):
                going.append(state)

        for request in decoding:
            state = self._states[request]
            if state in self.runner.pending:  # it takes part if its token is chosen now
                self.runner.errors.run_for(state, self.runner.choose, state)
            if state.completion.done or state in self.runner.pending:
                continue
            if state.search is not None:
                searches.append((state, state.search.ends))
            else:
                self.runner.errors.run_for(state, make_room, state)
        return [*self.runner.proposer.propose(going), *searches]

    # For the scheduler

    def reuse_prefix(self, request: ScheduledRequest) -> int:
        """See :class:`aleator.engine.scheduler.Cells`."""
        state = self._states[request]
        state.seq = request.seq
        if state.guidance is not None:
            (state.guidance.seq,) = request.others
        if state.search is not None:
            state.search.begin(self._cache, (request.seq, *request.others))
        try:
            cached = self.runner.enter(state, self._reuse)
        except Exception as error:
            self.runner.errors.fail(state, error)
            self.drop(request)
            return 0
        request.second_done, request.loading = state.second_positions, bool(state.prefix_loads)
        return cached

    def drop(self, request: ScheduledRequest) -> None:
        """See :class:`aleator.engine.scheduler.Cells`."""
        state = self._states[request]
        self.runner.empty(state)
        request.loading = False
        state.stats.reused_tokens = 0

    def used_cells(self) -> int | None:
        """See :class:`aleator.engine.scheduler.Cells`."""
        others = [seq for request in self.scheduler.running.values() for seq in request.others]
        return count_used_cells(self._cache, [*self.scheduler.running, *others])


def count_used_cells(cache: Cache, seqs: Iterable[int]) -> int | None:
    """How many cells some sequences hold, each counted once; None for caches that do not consist of cells."""
    pool = cache.pool
    if not isinstance(pool, AttentionPool):
        return None
    lists = [pool.cells.seq_cell_list(seq) for seq in seqs]
    return len(np.unique(np.concatenate(lists))) if lists else 0
