"""Simulates an engine's scheduler: requests without a model, steps that cost what a formula says.

    python benchmarks/simulate_engine.py [--requests 10000] [--cells 1000000] [--n-seq-max 256]

Requests come in bursts, with prompts of very different lengths, some of which begin alike, priorities, and
cancels.  Checked at every step: what sequences hold and may still come to need fits the cells, and the step
keeps its token budget.  Checked at the end: all requests have ended, nothing is reserved, nobody was passed
over for longer than the order allows.  Printed: what a step's decisions take, and how requests waited.  What
decisions take is wall-clock time, of each step the least of ``--repeat`` simulations: they decide the same.

Then what ``max_pause`` promises: a prompt of 512, 4,096 or 16,384 tokens comes beside 1, 4 or 15 who write
(benchmarks/bench_engine.py measures the same of an engine).
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter

import numpy as np

from aleator.engine.pace import Pace
from aleator.engine.scheduled_request import PASSED_OVER, ScheduledRequest
from aleator.engine.scheduler import Scheduler

STEP, ROW, PROMPT_TOKEN = 20e-3, 0.5e-3, 0.2e-3
"""Seconds that a step costs, a row of it, and a token of a prompt."""
MAX_PAUSE = 0.25


@dataclass(frozen=True)
class Machine:
    """What steps take: the default is near SmolLM2-135M on two cores.

    Attributes:
        step: Seconds of a step, whatever is in it.
        row: Of a token of somebody who writes.
        token: Of a prompt's token with nothing before it.
        depth: Tokens before a prompt's token after which it costs twice as much.
        noise: Standard deviation of the logarithm of what steps take.
    """

    step: float = 6e-3
    row: float = 1.5e-3
    token: float = 1e-3
    depth: float = 600
    noise: float = 0.1

    def seconds(self, rng: random.Random, rows: int, pieces: list[tuple[int, int]]) -> float:
        """What a step takes with so many rows, and pieces of prompts: their tokens, and those before."""
        prompts = sum(n * (1 + (before + n / 2) / self.depth) for n, before in pieces)
        took = self.step + self.row * rows + self.token * prompts
        return took * rng.lognormvariate(0.0, self.noise)


@dataclass
class Shared:
    """How prompts and those who write get on.

    Attributes:
        alone: Seconds to the first token of the last of the prompts, where nobody writes.
        beside: The same beside those who write.
        speed: Tokens per second of one of these while prompts are computed, over its speed without.
        longest: Seconds of the longest of its pauses.
        steps: Steps while prompts are computed.
    """

    alone: float
    beside: float
    speed: float
    longest: float
    steps: int


def share(
    lengths: list[int],
    writers: int,
    machine: Machine,
    max_pause: float = MAX_PAUSE,
    cached: int = 0,
    known: int = 0,
) -> Shared:
    """Let prompts come together beside some who write.

    Args:
        lengths: Tokens of the prompts.
        writers: How many write.
        machine: What steps take.
        max_pause: As of an engine.
        cached: Tokens of the prompts that are cached.
        known: Tokens of a prompt that was computed before, so that the engine has learned.
    """
    made = lengths, machine, max_pause, cached, known
    _, alone = steps_of(0, *made)
    usual, beside = steps_of(writers, *made)
    seconds = sum(beside)
    speed = len(beside) / seconds * float(np.mean(usual))
    return Shared(sum(alone), seconds, speed, max(beside), len(beside))


def steps_of(
    writers: int, lengths: list[int], machine: Machine, max_pause: float, cached: int, known: int
) -> tuple[list[float], list[float]]:
    """Seconds of steps of those who write, and of those from when prompts come until they are computed."""
    rng = random.Random(1)
    scheduler = Scheduler(writers + len(lengths) + 1, 10**9, 512, Pace(max_pause), reuses=False)
    cells = Cells({str(i): cached for i in range(len(lengths))})
    cells.cached.update(cells.stems)
    numbers = count()

    def come(length: int, namespace: str = "") -> ScheduledRequest:
        number = next(numbers)
        request = ScheduledRequest(np.full(length, number, np.int32), 10**6, namespace=namespace)
        request.number = number
        scheduler.add(request)
        return request

    def step() -> float:
        scheduler.admit(cells)
        plan = scheduler.plan()
        rows = len(plan.decoding)
        took = machine.seconds(rng, rows, [(n, request.depth) for request, n in plan.chunks])
        for request, n in [*plan.chunks, *((each, 1) for each in plan.decoding)]:
            request.done += n
        scheduler.observe(plan, rows, took)
        return took

    if known:
        first = come(known)
        step()
        while first.left:
            step()
        scheduler.remove(first)
    for _ in range(writers):
        come(8)
    usual = [step() for _ in range(40 * bool(writers))]
    prompts = [come(length, str(i)) for i, length in enumerate(lengths)]
    steps = [step()]
    while any(request.left for request in prompts):
        steps.append(step())
    return usual[len(usual) // 2 :], steps


@dataclass
class Cells:
    """Stands for the cache: which stems of prompts are cached, and who holds them."""

    stems: dict[str, int] = field(default_factory=dict)
    cached: set[str] = field(default_factory=set)
    holding: dict[ScheduledRequest, int] = field(default_factory=dict)
    seconds: float = 0.0  # spent in here, which is not the scheduler's time

    def reuse_prefix(self, request: ScheduledRequest) -> int:
        """See :class:`aleator.engine.scheduler.Cells`."""
        length = self.stems.get(request.namespace, 0)
        self.holding[request] = (
            min(length, len(request.prompt) - 1) if request.namespace in self.cached else 0
        )
        return self.holding[request]

    def drop(self, request: ScheduledRequest) -> None:
        """See :class:`aleator.engine.scheduler.Cells`."""
        del self.holding[request]

    def used_cells(self) -> int:
        """See :class:`aleator.engine.scheduler.Cells`."""
        started = perf_counter()
        shared: dict[str, int] = {}
        own = 0
        for request, n in self.holding.items():
            own += request.done - n
            shared[request.namespace] = max(shared.get(request.namespace, 0), n)
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
    came: dict[ScheduledRequest, float] = {}
    output: dict[ScheduledRequest, int] = {}
    decisions, waits, pauses = [], [], []
    clock, steps, most, ended, passed = 0.0, 0, 0, 0, 0
    while ended < requests:
        while arrivals and arrivals[0][0] <= clock:
            request = made(rng, cells, n_cells, arrivals.pop(0)[1])
            came[request], output[request] = (
                clock,
                min(rng.randint(1, 400), request.max_positions - len(request.prompt)),
            )
            scheduler.add(request)
        started, cells.seconds = perf_counter(), 0.0
        for request in scheduler.admit(cells):
            waits.append(clock - came[request])
            passed = max(passed, request.passed_over)
        plan = scheduler.plan()
        decided = perf_counter() - started - cells.seconds
        n_prompt = sum(n for _, n in plan.chunks)
        rows = len(plan.decoding)
        if rows + n_prompt == 0:
            clock = arrivals[0][0]
            continue
        steps += 1
        took = STEP + ROW * rows + PROMPT_TOKEN * n_prompt
        if rows and n_prompt:
            pauses.append(took)
        clock += took
        check(rows + n_prompt <= max(512, 2 * n_seq_max), "a step exceeds its token budget")
        finished = []
        for request, n in plan.chunks:
            request.done += n
            cells.cached.add(request.namespace)
        for request in plan.decoding:
            request.done += 1
            output[request] -= 1
            if output[request] <= 0 or rng.random() < 1e-4:
                finished.append(request)
        started = perf_counter()
        scheduler.observe(plan, rows, took)
        decisions.append(decided + perf_counter() - started)
        most = max(most, scheduler.reserved)
        growth = sum(request.growth for request in scheduler.running.values())
        check(cells.used_cells() + growth <= n_cells, "running requests may come to lack cells")
        for request in finished:
            cells.drop(request)
            scheduler.remove(request)
            ended += 1
    check(not scheduler.running and scheduler.reserved == 0, "something is still reserved")
    check(passed <= PASSED_OVER + 1, "a request was passed over too often")
    check(len(waits) == requests, "a request never began")
    return Result(steps, clock, decisions, waits, pauses, most, passed)


def made(rng: random.Random, cells: Cells, n_cells: int, number: int) -> ScheduledRequest:
    """A request; one in a hundred is enormous."""
    stem = rng.choice([*cells.stems, ""])
    n = cells.stems.get(stem, 0) + rng.choice([5, 50, 500])
    if number % 100 == 0:
        n = n_cells // 5
    prompt = np.full(n, number, np.int32)
    prompt[: cells.stems.get(stem, 0)] = -1
    request = ScheduledRequest(prompt, n + rng.randint(1, 500), rng.choice([0, 0, 0, -1, 2]), stem)
    request.number = number
    return request


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
        pauses = 1e3 * np.array(found.pauses)
        print(
            f"steps with pieces of prompts: {np.median(pauses):.0f} ms, longest {pauses.max():.0f}"
        )
    print(
        f"reserved at most {found.most_reserved} cells; passed over at most {found.passed_over} times"
    )
    print_shared()


def print_shared() -> None:
    """A table of what a prompt and those who write do to one another."""
    print(
        "\nprompt | writers | first token alone | beside | times | writers' speed | longest pause"
    )
    for length in (512, 4096, 16384):
        for writers in (1, 4, 15):
            found = share([length], writers, Machine())
            print(
                f"{length} | {writers} | {found.alone:.2f} s | {found.beside:.2f} s | "
                f"{found.beside / found.alone:.2f} | {found.speed:.2f} | {1e3 * found.longest:.0f} ms"
            )


if __name__ == "__main__":
    main()
