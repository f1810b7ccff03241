"""Decides which job goes next and what a step computes, without a model, a clock or a thread."""

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
"""Fewest tokens per prompt when a step's tokens are halved from prompt to prompt."""


class Cells(Protocol):
    """The cache as the scheduler uses it."""

    def adopt(self, job: Job) -> int:
        """Give a job's sequence the cached prefix of its prompt; return the prefix's length.

        The job itself records the progress of a second prompt (``beside_done``) and whether more is still to
        come (``arriving``, :meth:`Scheduler.arrived`).
        """

    def drop(self, job: Job) -> None:
        """Empty a job's sequences again."""

    def held(self) -> int | None:
        """Number of cells that running jobs' sequences hold, each counted once; None if unknown."""


@dataclass(frozen=True)
class StepPlan:
    """What one step computes: jobs that decode a token, and jobs with a number of prompt tokens."""

    writing: Sequence[Job]
    chunks: Sequence[tuple[Job, int]]


class Scheduler:
    """Admits jobs when there is room for the longest they can become, and divides steps among them.

    So no started job ever lacks cells: what running jobs hold and may still need fits the cache together, and
    cached prefixes are evicted for it.

    Jobs with the same prompt start together: one computes it, the others follow and take over its cells.
    """

    def __init__(
        self,
        n_seq_max: int,  # Sequences of the cache
        n_cells: int,  # Cells of the cache
        token_budget: int,  # Most tokens of a step
        # Divides time between prefill and decoding; None: prefill goes first
        pace: Pace | None,
        *,
        # Whether other jobs can reuse what a job computes, so that waiting for it may pay
        reuses: bool = True,
    ) -> None:
        self.waiting = Queue()  # Jobs that have not started
        # Jobs by their sequences, in the order in which they started
        self.running: dict[int, Job] = {}
        # Positions that these may use; a shared prompt is counted once
        self.reserved = 0
        self.n_cells, self._token_budget, self._pace = n_cells, token_budget, pace
        self._free = list(range(n_seq_max))
        heapify(self._free)
        # Running jobs whose prompts are being computed, in their order, without followers.
        self.reading: list[Job] = []
        self._alike: dict[tuple[str, int, int], list[Job]] = {}  # the same, by ``looks``
        # And by ``beginning``, in order.
        self._beginning: dict[tuple[str, bytes], list[Job]] = {}
        self._writing: dict[int, Job] = {}  # running jobs that decode
        self._rows = 0  # their rows in a step
        self._reuses = reuses
        self._stuck = False  # no job fitted, and nothing has changed since
        # Jobs whose prompts others wait for, and the length at which the wait ends.
        self._awaited: dict[Job, int] = {}

    @property
    def at_work(self) -> bool:
        """Whether there is something to compute."""
        return self.writes or self._n_computed > 0

    @property
    def writes(self) -> bool:
        """Whether a job is decoding."""
        return bool(self._writing)

    @property
    def _n_computed(self) -> int:
        """Number of prompts that steps compute."""
        return sum([not job.arriving for job in self.reading])

    @property
    def free(self) -> int | None:
        """A sequence that no running job has; None if there is none."""
        return self._free[0] if self._free else None

    def add(self, job: Job) -> None:
        """Add a job to the queue."""
        self.waiting.add(job)
        self._stuck = False

    def remove(self, job: Job) -> None:
        """Remove a job that has ended or was given up; its sequence is empty."""
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
        """The job that takes over a shared prompt when the job computing it ends; None if there is none."""
        if job.follows or not job.left:
            return None
        return next((each for each in job.partners if each.follows), None)

    def _part(self, job: Job) -> None:
        """Release a job's positions; another partner becomes responsible for a shared prompt."""
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
        """Start computing a job's prompt, or decoding if nothing of it is left."""
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
        """Start jobs while there are sequences and cells for them.

        Each returned job has a sequence and ``done`` tokens of its prompt.
        """
        begun: list[Job] = []
        growth: int | None = None  # of the running jobs
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
        """Start a job if there is room; return whether it has started.

        ``promised`` is the number of cells that running jobs hold and may still take; None if irrelevant or
        unknown. ``growth`` is the number that they may still take; None if irrelevant.
        """
        alike = self._alike.get(job.looks, ())
        leader = next((each for each in alike if job.same_prompt(each)), None)
        needs = job.longest if leader is None else job.longest - len(job.prompt)
        certain = self.reserved + needs <= self.n_cells
        if not certain:
            # Sharing may make it fit: at best it shares all of its prompt but the last token.
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
        """Whether a running job computes enough of a waiting job's prompt for waiting to pay."""
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
        """Plan the next step: a token of every decoding job, and chunks of prompts in their turn.

        The oldest prompt gets at least half of the prompt tokens, so that it ends; short ones need not wait for
        it.
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
        # Comparisons, since for dozens of prompts calls of min and max would cost most.
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
        if room > 0 and len(chunks) > 1:  # tokens that short prompts left
            job, n = chunks[0]
            chunks[0] = (job, min(n + room, job.left, job.most))
        return StepPlan(writing, chunks)

    def observe(self, plan: StepPlan, rows: int, seconds: float) -> None:
        """Learn what a step has cost, and which prompts are now complete.

        ``done`` of its jobs is up to date; ``rows`` is the number of rows decoded, 0 if none.
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
        """Note that no more of a job's prompt will be loaded: the rest is to be computed."""
        job.arriving = False
        self.advanced(job)

    def advanced(self, job: Job) -> bool:
        """Note progress on a job's prompt: if complete, start decoding; release jobs that waited for it.

        Returns whether a job waited for it.
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
    """Remove a job from the list under a key, and the key when its list is empty."""
    found = jobs[key]
    found.remove(job)
    if not found:
        del jobs[key]
