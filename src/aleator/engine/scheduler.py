"""Who goes next, and what a step computes: decisions only, without a model, a clock or a thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Protocol

from aleator.engine.job import Job
from aleator.engine.pace import Pace
from aleator.engine.queue import Queue

WORTH_WAITING = 32
"""Tokens of a prompt that another job is just computing, from which on it is better to wait for them."""


class Cells(Protocol):
    """What the scheduler asks of the cache."""

    def adopt(self, job: Job) -> int:
        """Give a job's sequence the cached beginning of its prompt; how many tokens that is."""

    def drop(self, job: Job) -> None:
        """Empty a job's sequence again."""

    def held(self) -> int | None:
        """Cells that the sequences of running jobs hold, each counted once; None: that cannot be told."""


@dataclass(frozen=True)
class StepPlan:
    """What one step computes.

    Attributes:
        writing: jobs that decode the token drawn last.
        chunks: jobs with the tokens of their prompts to compute.
    """

    writing: Sequence[Job]
    chunks: Sequence[tuple[Job, int]]


class Scheduler:
    """Admits jobs when there is room for the longest they can become, and divides steps among them.

    So nobody who has begun ever lacks cells: what running jobs hold and what they may still need together
    fits the cache; cached prefixes give way.

    Args:
        n_seq_max: jobs that run at the same time.
        n_cells: cells of the cache.
        token_budget: tokens of a step at most.
        pace: sizes pieces of prompts.

    Attributes:
        waiting: jobs that have not begun.
        running: jobs by their sequences, in the order in which they began.
        reserved: positions that these may come to use, without regard to what they share.
    """

    def __init__(self, n_seq_max: int, n_cells: int, token_budget: int, pace: Pace) -> None:
        self.waiting = Queue()
        self.running: dict[int, Job] = {}
        self.reserved = 0
        self.n_cells, self._token_budget, self._pace = n_cells, token_budget, pace
        self._free = list(range(n_seq_max))
        heapify(self._free)
        self._stuck = False  # nobody fitted, and nothing has changed since

    def add(self, job: Job) -> None:
        """Let a job wait for its turn."""
        self.waiting.add(job)
        self._stuck = False

    def remove(self, job: Job) -> None:
        """A job has ended, or was given up before it began; its sequence is empty."""
        if self.waiting.remove(job):
            self._stuck = False
        elif self.running.get(job.seq) is job:
            del self.running[job.seq]
            self.reserved -= job.longest
            heappush(self._free, job.seq)
            self._stuck = False

    def admit(self, cells: Cells) -> list[Job]:
        """Begin jobs while there are sequences and cells for them.

        Args:
            cells: the cache.

        Returns:
            The jobs that begin; each has a sequence, and ``done`` tokens of its prompt.
        """
        begun: list[Job] = []
        while self._free and len(self.waiting) and not self._stuck:
            self._stuck = True
            for job in self.waiting.head():
                if self._begin(job, cells):
                    begun.append(job)
                    self._stuck = False
                    break
        return begun

    def _begin(self, job: Job, cells: Cells) -> bool:
        others = self.running.values()
        certain = self.reserved + job.longest <= self.n_cells
        held = None if certain else cells.held()
        # What is shared may make it fit; without, the sum of all reservations decides.
        if not certain and (held is None or not job.shares):
            return False
        if self._computed_now(job):
            return False
        job.seq = heappop(self._free)
        job.done = cells.adopt(job)
        self.running[job.seq] = job
        if not certain:
            held = cells.held()
            if held is None or held + sum(each.growth for each in others) > self.n_cells:
                self._give_back(job, cells)
                return False
        self.waiting.take(job)
        self.reserved += job.longest
        return True

    def _give_back(self, job: Job, cells: Cells) -> None:
        cells.drop(job)
        del self.running[job.seq]
        heappush(self._free, job.seq)
        job.seq, job.done = -1, 0

    def _computed_now(self, job: Job) -> bool:
        """Whether a running job computes so much of a waiting one's prompt that it is better to wait for it."""
        return job.shares and any(
            other.left > WORTH_WAITING
            and other.shares
            and other.namespace == job.namespace
            and job.common(other) - other.done > WORTH_WAITING
            for other in self.running.values()
        )

    def plan(self) -> StepPlan:
        """What the next step computes: a token of everybody who writes, then pieces of prompts."""
        writing: list[Job] = []
        reading: list[Job] = []
        for job in self.running.values():
            (reading if job.left else writing).append(job)
        chunks: list[tuple[Job, int]] = []
        room = self._token_budget - len(writing)
        if writing and reading:
            room = 0 if self._pace.unknown else min(room, self._pace.tokens())
        for job in sorted(reading, key=_turn) if len(reading) > 1 else reading:
            n = min(job.left, room)
            if n <= 0:
                break
            chunks.append((job, n))
            room -= n
        if not writing and not chunks and reading:
            chunks.append((min(reading, key=_turn), 1))
        return StepPlan(writing, chunks)

    def observe(self, plan: StepPlan, rows: int, seconds: float) -> None:
        """Learn what a step has cost.

        Args:
            plan: what it computed.
            rows: tokens of those who write.
            seconds: how long it took.
        """
        self._pace.observe(rows, sum(n for _, n in plan.chunks), seconds)
        self._stuck = self._stuck and not plan.chunks  # who waits for a prompt looks again


def _turn(job: Job) -> tuple[int, int]:
    return job.turn
