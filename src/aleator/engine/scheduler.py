"""Who goes next, and what a step computes: decisions only, without a model, a clock or a thread."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Protocol, TypeVar

from aleator.core.records import dataclass
from aleator.engine.job import WORTH_WAITING, Job, Queue
from aleator.engine.pace import Pace

K = TypeVar("K")

SHORTEST = 2
"""Tokens of one prompt that a step computes at least, so that half of what is left comes to an end."""


class Cells(Protocol):
    """What the scheduler asks of the cache."""

    def adopt(self, job: Job) -> int:
        """Give a job's sequence the cached beginning of its prompt; how many tokens that is.

        Of a second prompt the job itself is told (``beside_done``), and whether more will come
        (``arriving``, :meth:`Scheduler.arrived`).
        """

    def drop(self, job: Job) -> None:
        """Empty a job's sequences again."""

    def held(self) -> int | None:
        """Cells that the sequences of running jobs hold, each counted once; None: that cannot be told."""


@dataclass(frozen=True)
class StepPlan:
    """What one step computes: jobs that write a token, and jobs with how many tokens of their prompts."""

    writing: Sequence[Job]
    chunks: Sequence[tuple[Job, int]]


class Scheduler:
    """Admits jobs when there is room for the longest they can become, and divides steps among them.

    So nobody who has begun ever lacks cells: what running jobs hold and what they may still need together
    fits the cache; cached prefixes give way.

    Jobs with the same prompt begin together: one computes it, the others follow and take over its cells.
    """

    def __init__(
        self,
        n_seq_max: int,  # Sequences of the cache
        n_cells: int,  # Cells of the cache
        token_budget: int,  # Tokens of a step at most
        # Shares time between prompts and those who write; None: prompts go first
        pace: Pace | None,
        *,
        # What a job computes can be reused by another one, so it may be worth waiting for
        reuses: bool = True,
    ) -> None:
        self.waiting = Queue()  # Jobs that have not begun
        # Jobs by their sequences, in the order in which they began
        self.running: dict[int, Job] = {}
        # Positions that these may come to use; a prompt that several share, counted once
        self.reserved = 0
        self.n_cells, self._token_budget, self._pace = n_cells, token_budget, pace
        self._free = list(range(n_seq_max))
        heapify(self._free)
        # Running jobs again: those whose prompts are being computed, in their order, without those that follow.
        self.reading: list[Job] = []
        self._alike: dict[tuple[str, int, int], list[Job]] = {}  # the same, by their looks
        # And by their beginnings, in order.
        self._beginning: dict[tuple[str, bytes], list[Job]] = {}
        self._writing: dict[int, Job] = {}  # those that write
        self._rows = 0  # of these in a step
        self._reuses = reuses
        self._stuck = False  # nobody fitted, and nothing has changed since
        # Jobs whose prompts others wait for, and how far these must have come.
        self._awaited: dict[Job, int] = {}

    @property
    def at_work(self) -> bool:
        """Whether there is something to compute."""
        return self.writes or self._n_computed > 0

    @property
    def writes(self) -> bool:
        """Whether somebody has begun to write."""
        return bool(self._writing)

    @property
    def _n_computed(self) -> int:
        """Prompts that steps compute."""
        return sum([not job.arriving for job in self.reading])

    @property
    def free(self) -> int | None:
        """A sequence that no running job has; None: there is none."""
        return self._free[0] if self._free else None

    def add(self, job: Job) -> None:
        """Let a job wait for its turn."""
        self.waiting.add(job)
        self._stuck = False

    def remove(self, job: Job) -> None:
        """A job has ended, or was given up before it began; its sequence is empty."""
        if self.running.get(job.seq) is job:
            heir = self.heir(job)
            if heir is not None:
                heir.follows = False
                self._read(heir)
            self._part(job)
            self._forget(job)
            self._awaited.pop(job, None)
            self._stuck = False
        elif self.waiting.remove(job):
            self._stuck = False

    def heir(self, job: Job) -> Job | None:
        """Who goes on with the prompt that a job computes for others too, when that job ends; None: nobody."""
        if job.follows or not job.left:
            return None
        return next((each for each in job.partners if each.follows), None)

    def _part(self, job: Job) -> None:
        """A job's positions are reserved no longer; another partner answers for the prompt they share."""
        self.reserved -= job.reserve
        if job.partners:
            first = job.partners[0] is job
            job.partners.remove(job)
            if first and job.partners:
                self.reserved += len(job.prompt)

    def _forget(self, job: Job) -> None:
        del self.running[job.seq]
        if self._writing.pop(job.seq, None) is not None:
            self._rows -= job.width
        elif job in self.reading:
            self._stop_reading(job)
        heappush(self._free, job.seq)
        for seq in job.others:
            heappush(self._free, seq)

    def _read(self, job: Job) -> None:
        """A job that has begun has a prompt to compute, or writes if nothing of it is left."""
        if job.left:
            insort(self.reading, job, key=_turn)
            self._alike.setdefault(job.looks, []).append(job)
            insort(self._beginning.setdefault(job.beginning, []), job, key=_turn)
        else:
            self._write(job)

    def _stop_reading(self, job: Job) -> None:
        self.reading.remove(job)
        _remove(self._alike, job.looks, job)
        _remove(self._beginning, job.beginning, job)

    def _write(self, job: Job) -> None:
        self._writing[job.seq] = job
        self._rows += job.width

    def admit(self, cells: Cells) -> list[Job]:
        """Begin jobs while there are sequences and cells for them.

        Each that begins, and is returned, has a sequence and ``done`` tokens of its prompt.
        """
        begun: list[Job] = []
        growth: int | None = None  # of those who run
        while self._free and len(self.waiting) and not self._stuck:
            self._stuck = True
            self._awaited.clear()
            held: int | None = None
            for job in self.waiting.head():
                if len(self._free) < job.width:
                    continue
                if self.reserved + job.longest > self.n_cells:
                    held = cells.held() if held is None else held
                    if growth is None:
                        growth = sum([each.growth for each in self.running.values()])
                promised = None if held is None or growth is None else held + growth
                if self._begin(job, cells, promised, growth):
                    growth = None if growth is None else growth + job.growth
                    begun.append(job)
                    self._stuck = False
                    break
        return begun

    def _begin(self, job: Job, cells: Cells, promised: int | None, growth: int | None) -> bool:
        """Begin a job if there is room; returns whether it has begun.

        ``promised`` is what running jobs hold and may still take; None where that does not matter, or cannot be
        told.  ``growth`` is what they may still take; None where it does not matter.
        """
        alike = self._alike.get(job.looks, ())
        leader = next((each for each in alike if job.same_prompt(each)), None)
        needs = job.longest if leader is None else job.longest - len(job.prompt)
        certain = self.reserved + needs <= self.n_cells
        if not certain:
            # What is shared may make it fit: at best all of its prompt but the last token.
            least = needs if leader is not None else job.longest - len(job.prompt) + 1
            if promised is None or not job.shares or promised + least > self.n_cells:
                return False
        if leader is None and self._computed_now(job):
            return False
        job.seq = heappop(self._free)
        job.others = [heappop(self._free) for _ in range(1, job.width)]
        job.follows = leader is not None
        job.done = 0 if job.follows else cells.adopt(job)
        self.running[job.seq] = job
        held = None if certain or growth is None else cells.held()
        if held is not None and growth is not None and held + growth + job.growth > self.n_cells:
            cells.drop(job)
            self._forget(job)
            job.seq, job.others = -1, []
            job.done = job.beside_done = 0
            job.follows = False
            return False
        if leader is None:
            self._read(job)
        else:
            leader.partners = leader.partners or [leader]
            leader.partners.append(job)
            job.partners = leader.partners
        self.waiting.take(job)
        self.reserved += job.reserve
        return True

    def _computed_now(self, job: Job) -> bool:
        """Whether a running job computes so much of a waiting one's prompt that it is better to wait for it."""
        if not job.shares or not self._reuses:
            return False
        for other in self._beginning.get(job.beginning, ()):
            if other.shares and other.left > WORTH_WAITING:
                least = other.done + WORTH_WAITING + 1
                common = job.common(other, least)
                if common >= least:
                    self._awaited[other] = min(common, self._awaited.get(other, common))
                    return True
        return False

    def plan(self) -> StepPlan:
        """What the next step computes: a token of everybody who writes, and pieces of prompts in their turn.

        The oldest prompt gets at least half of what prompts get, so it comes to its end; short ones need not
        wait for it.
        """
        writing = list(self._writing.values())
        reading = [job for job in self.reading if not job.arriving]
        chunks: list[tuple[Job, int]] = []
        room = self._token_budget - self._rows
        pace = self._pace
        if writing and reading and pace is not None:
            if pace.writers_turn():
                return StepPlan(writing, ())
            room = min(room, pace.tokens(max([job.depth for job in reading])))
        last = reading[-1] if reading else None
        # By comparisons: of dozens of prompts, calls of min and max would cost most.
        for job in reading:
            if room <= 0:
                break
            n = job.left
            if job is not last and n > SHORTEST:
                half = room // 2
                n = n if n < half else half if half > SHORTEST else SHORTEST
            n = n if n < room else room
            n = n if n < job.most else job.most
            chunks.append((job, n))
            room -= n
        if room > 0 and len(chunks) > 1:  # what short prompts left over
            job, n = chunks[0]
            chunks[0] = (job, min(n + room, job.left, job.most))
        return StepPlan(writing, chunks)

    def observe(self, plan: StepPlan, rows: int, seconds: float) -> None:
        """Learn what a step has cost, and who has read all of the prompt.

        ``done`` of its jobs is up to date; those who write had so many rows decoded, 0 if none was.
        """
        if self._pace is not None:
            tokens = sum([n for _, n in plan.chunks])
            depths = sum([n * max(job.depth - n / 2, 0) for job, n in plan.chunks])
            depth = depths / max(tokens, 1)
            begun = sum([job.left == 0 for job, _ in plan.chunks])
            self._pace.observe(
                rows, tokens, depth, seconds, begun=begun, prompts=self._n_computed - begun
            )
        for job, _ in plan.chunks:
            self.advanced(job)

    def arrived(self, job: Job) -> None:
        """Nothing more of a job's prompt will be read: the rest is to be computed."""
        job.arriving = False
        self.advanced(job)

    def advanced(self, job: Job) -> bool:
        """More of a job's prompt is there: it writes if that is all, and who waited for it waits no longer.

        Returns whether somebody waited.
        """
        if job.left == 0 and job in self.reading:
            self._stop_reading(job)
            self._write(job)
            for each in job.partners:
                if each.follows:
                    each.follows = False
                    self._write(each)
        enough = job in self._awaited and (job.left == 0 or job.done >= self._awaited[job])
        if enough:
            del self._awaited[job]
            self._stuck = False
        return enough


def _turn(job: Job) -> tuple[int, int]:
    return job.turn


def _remove(jobs: dict[K, list[Job]], key: K, job: Job) -> None:
    """Take a job out of those with a key, and the key with the last one."""
    found = jobs[key]
    found.remove(job)
    if not found:
        del jobs[key]
