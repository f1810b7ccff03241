"""Simulates an engine's scheduler: requests without a model, steps that cost what a formula says.

    python benchmarks/simulate_engine.py [--requests 10000] [--cells 1000000] [--n-seq-max 256]

Requests come in bursts, with prompts of very different lengths, some of which begin alike, priorities, and
cancels.  Checked at every step: what sequences hold and may still come to need fits the cells, and the step
keeps its token budget.  Checked at the end: all requests have ended, nothing is reserved, nobody was passed
over for longer than the order allows.  Printed: what a step's decisions take, and how requests waited.  What
decisions take is wall-clock time, of each step the least of ``--repeat`` simulations: they decide the same.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from aleator.engine.job import Job
from aleator.engine.pace import Pace
from aleator.engine.queue import PASSED_OVER
from aleator.engine.scheduler import Scheduler

STEP, ROW, PROMPT_TOKEN = 20e-3, 0.5e-3, 0.2e-3
"""Seconds that a step costs, a row of it, and a token of a prompt."""
MAX_PAUSE = 2.0


@dataclass
class Cells:
    """Stands for the cache: which stems of prompts are cached, and who holds them."""

    stems: dict[str, int] = field(default_factory=dict)
    cached: set[str] = field(default_factory=set)
    holding: dict[Job, int] = field(default_factory=dict)
    seconds: float = 0.0  # spent in here, which is not the scheduler's time

    def adopt(self, job: Job) -> int:
        """See :class:`aleator.engine.scheduler.Cells`."""
        length = self.stems.get(job.namespace, 0)
        self.holding[job] = min(length, len(job.prompt) - 1) if job.namespace in self.cached else 0
        return self.holding[job]

    def drop(self, job: Job) -> None:
        """See :class:`aleator.engine.scheduler.Cells`."""
        del self.holding[job]

    def held(self) -> int:
        """See :class:`aleator.engine.scheduler.Cells`."""
        started = perf_counter()
        shared: dict[str, int] = {}
        own = 0
        for job, n in self.holding.items():
            own += job.done - n
            shared[job.namespace] = max(shared.get(job.namespace, 0), n)
        self.seconds += perf_counter() - started
        return own + sum(shared.values())


@dataclass
class Result:
    """What a simulation found."""

    steps: int
    seconds: float
    decisions: list[float]
    waits: list[float]
    pauses: list[float]
    bounds: list[float]
    most_reserved: int
    passed_over: int


def simulate(requests: int, n_cells: int, n_seq_max: int, seed: int = 1) -> Result:
    """Run requests to their ends.

    Raises:
        AssertionError: the scheduler broke one of its promises.
    """
    rng = random.Random(seed)
    cells = Cells({f"stem {i}": rng.choice([100, 1000, 4000]) for i in range(8)})
    scheduler = Scheduler(n_seq_max, n_cells, max(512, 2 * n_seq_max), Pace(MAX_PAUSE))
    arrivals = sorted((rng.choice(range(100)) + rng.random() ** 4, i) for i in range(requests))
    came: dict[Job, float] = {}
    output: dict[Job, int] = {}
    decisions, waits, pauses, bounds = [], [], [], []
    clock, steps, most, ended, passed = 0.0, 0, 0, 0, 0
    while ended < requests:
        while arrivals and arrivals[0][0] <= clock:
            job = made(rng, cells, n_cells, arrivals.pop(0)[1])
            came[job], output[job] = clock, min(rng.randint(1, 400), job.longest - len(job.prompt))
            scheduler.add(job)
        started, cells.seconds = perf_counter(), 0.0
        for job in scheduler.admit(cells):
            waits.append(clock - came[job])
            passed = max(passed, job.passed_over)
        plan = scheduler.plan()
        decided = perf_counter() - started - cells.seconds
        n_prompt = sum(n for _, n in plan.chunks)
        rows = len(plan.writing)
        if rows + n_prompt == 0:
            clock = arrivals[0][0]
            continue
        steps += 1
        took = STEP + ROW * rows + PROMPT_TOKEN * n_prompt
        if rows and n_prompt:
            pauses.append(took / (STEP + ROW * rows))
            bounds.append(took / (STEP + ROW * len(scheduler.running)))
        clock += took
        check(rows + n_prompt <= max(512, 2 * n_seq_max), "a step exceeds its token budget")
        finished = []
        for job, n in plan.chunks:
            job.done += n
            cells.cached.add(job.namespace)
        for job in plan.writing:
            job.done += 1
            output[job] -= 1
            if output[job] <= 0 or rng.random() < 1e-4:
                finished.append(job)
        started = perf_counter()
        scheduler.observe(plan, rows, took)
        decisions.append(decided + perf_counter() - started)
        most = max(most, scheduler.reserved)
        growth = sum(job.growth for job in scheduler.running.values())
        check(cells.held() + growth <= n_cells, "running requests may come to lack cells")
        for job in finished:
            cells.drop(job)
            scheduler.remove(job)
            ended += 1
    check(not scheduler.running and scheduler.reserved == 0, "something is still reserved")
    check(passed <= PASSED_OVER + 1, "a request was passed over too often")
    check(len(waits) == requests, "a request never began")
    return Result(steps, clock, decisions, waits, pauses, bounds, most, passed)


def made(rng: random.Random, cells: Cells, n_cells: int, number: int) -> Job:
    """A request; one in a hundred is enormous."""
    stem = rng.choice([*cells.stems, ""])
    n = cells.stems.get(stem, 0) + rng.choice([5, 50, 500])
    if number % 100 == 0:
        n = n_cells // 5
    prompt = np.full(n, number, np.int32)
    prompt[: cells.stems.get(stem, 0)] = -1
    job = Job(prompt, n + rng.randint(1, 500), rng.choice([0, 0, 0, -1, 2]), stem)
    job.number = number
    return job


def check(holds: bool, what: str) -> None:
    """Raise AssertionError unless something holds."""
    if not holds:
        raise AssertionError(what)


def main() -> None:
    """Simulate what the command line asks for, and print what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--cells", type=int, default=1_000_000)
    parser.add_argument("--n-seq-max", type=int, default=256)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3, help="simulations that decide the same")
    args = parser.parse_args()
    size = args.requests, args.cells, args.n_seq_max, args.seed
    found = simulate(*size)
    same = [found.decisions, *(simulate(*size).decisions for _ in range(1, args.repeat))]
    micro = 1e6 * np.min(same, axis=0)
    print(f"{args.requests} requests, {args.cells} cells, {args.n_seq_max} at once:")
    print(f"{found.steps} steps, {found.seconds:.0f} simulated seconds")
    print(
        f"decisions of a step: mean {micro.mean():.1f} us, median {np.median(micro):.1f}, "
        f"99% {np.quantile(micro, 0.99):.1f}; {1e6 / micro.mean():.0f} steps per second"
    )
    waits = np.array(found.waits)
    print(f"waited: median {np.median(waits):.1f} s, most {waits.max():.1f} s")
    if found.pauses:
        pauses = np.array(found.pauses)
        print(
            f"mixed steps: {np.median(pauses):.2f} times a usual one, 99% {np.quantile(pauses, 0.99):.2f}"
        )
        later = np.array(found.bounds)
        print(
            f"the same over a step in which all who have begun write: {np.median(later):.2f}, "
            f"99% {np.quantile(later, 0.99):.2f}"
        )
    print(
        f"reserved at most {found.most_reserved} cells; passed over at most {found.passed_over} times"
    )


if __name__ == "__main__":
    main()
