"""Host chains against llama.cpp's and transformers', in the same process, interleaved, on the same rows.

    python benchmarks/bench_host_chain.py [--quick] [--vocab 32000 ...] [--only TEXT] [--out FILE.md]

The cases are those of benchmarks/host.  llama.cpp runs through llama-cpp-python's ctypes.  Its time includes
the first step of its sample(): building an array of candidates from the logits (widened first if they have half
precision).  This is done with NumPy, as in its binding, and also measured alone, to show both ratios.
transformers runs its logits processors, softmax and multinomial on one thread, if it has all of a case's
samplers, interleaved with ours a second time.  A figure is the median of the repetitions, in microseconds.

The table of `sample_batch` has microseconds per row for 1, 8 and 64 rows on 1 and 2 threads: the best of the
repetitions, because a second core is seldom free for long.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import torch
import transformers
from host_cases import Case, cases, model_like

from aleator import samplers as S

sys.path.append(str(Path(__file__).parent.parent / "tools"))
from golden_llama import MODEL, Reference
from llama_peer import vocabulary
from run_report import Report, command, machine, parser

TURNS = 9  # the least
Step = Callable[[Any], object]


class Llama:
    """One of llama.cpp's chains, with an array of candidates that is refilled for every step."""

    def __init__(self, chain: list[tuple[str, dict[str, Any]]], n: int) -> None:
        self.chain = Reference(chain, n, llama_vocabulary()).chain
        self.data = np.zeros(
            n, np.dtype([("id", np.intc), ("logit", np.single), ("p", np.single)], align=True)
        )
        self.ids = np.arange(n, dtype=np.intc)
        # Its own pointer, as a sampler may move the array's.
        self.first = self.data.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token_data))
        self.array = llama_cpp.llama_token_data_array(
            data=self.first, size=n, selected=-1, sorted=False
        )
        self.pointer = ctypes.byref(self.array)

    def fill(self, row: Any) -> None:
        logits = row.float().numpy() if isinstance(row, torch.Tensor) else row
        self.data["id"], self.data["logit"], self.data["p"] = self.ids, logits, 0
        self.array.data, self.array.size = self.first, len(logits)
        self.array.selected, self.array.sorted = -1, False

    def accept(self, token: int) -> None:
        llama_cpp.llama_sampler_accept(self.chain, token)

    def sample(self, row: Any) -> None:
        self.fill(row)
        llama_cpp.llama_sampler_apply(self.chain, self.pointer)
        self.accept(self.array.data[self.array.selected].id)


@cache
def llama_vocabulary() -> Any:
    return vocabulary(MODEL)


class Transformers:
    """The same samplers as logits processors; a case has them only if transformers has them all."""

    def __init__(self, case: Case, n: int) -> None:
        self.processors = transformers.LogitsProcessorList()
        self.past = torch.tensor([case.past(n) or [0]])
        self.greedy = False
        for sampler in case.samplers(n):
            if not sampler.neutral:
                self._add(sampler)

    def _add(self, s: Any) -> None:
        t = transformers
        make: dict[str, Callable[[], Any]] = {
            "temperature": lambda: t.TemperatureLogitsWarper(s.temperature),
            "top_k": lambda: t.TopKLogitsWarper(s.top_k),
            "top_p": lambda: t.TopPLogitsWarper(s.top_p),
            "min_p": lambda: t.MinPLogitsWarper(s.min_p),
            "typical_p": lambda: t.TypicalLogitsWarper(s.typical_p),
        }
        self.greedy |= s.name == "greedy"
        if (s.name == "temperature" and s.dynatemp_range) or getattr(
            s, "mass", "current"
        ) == "full":
            raise KeyError(s.name)
        if s.name not in ("greedy", "dist"):
            self.processors.append(make[s.name]())

    def sample(self, row: Any) -> int:
        scores = row if isinstance(row, torch.Tensor) else torch.from_numpy(row)
        scores = self.processors(self.past, scores[None].float())
        if self.greedy:
            return int(scores.argmax())
        return int(torch.multinomial(scores.softmax(-1), 1))


def peers(case: Case, n: int) -> tuple[Llama | None, Transformers | None]:
    """The peers of a case."""
    chain = case.chain if case.llama is None else case.llama
    theirs = Llama(chain, n) if chain else None
    if theirs:
        for token in case.past(n):
            theirs.accept(token)
    try:
        return theirs, Transformers(case, n)
    except KeyError:
        return theirs, None


def measure(
    steps: list[Step], rows: list[Any], seconds: float, figure: Callable[[list[float]], float]
) -> list[float]:
    """A figure of each step's microseconds, the steps taking turns."""
    samples: list[list[float]] = [[] for _ in steps]
    ends, turn = time.perf_counter() + seconds, 0
    while turn < TURNS or time.perf_counter() < ends:
        row = rows[turn % len(rows)]
        for step, taken in zip(steps, samples, strict=True):
            began = time.perf_counter()
            step(row)
            taken.append((time.perf_counter() - began) * 1e6)
        turn += 1
    return [figure(taken) for taken in samples]


def line(case: Case, n: int, seconds: float) -> list[str]:
    """The cells of a case's line of the table."""
    n = case.size(n)
    ours, rows = case.ours(n), case.make_rows(n)
    llama, torch_ = peers(case, n)
    steps: list[Step] = [ours.sample, *([llama.sample, llama.fill] if llama else [])]
    micro, *others = measure(steps, rows, seconds, statistics.median)
    cells = [case.name if case.vocabulary is None else f"{case.name} (V = {n:,})", f"{micro:.1f}"]
    target = f"{case.target:g}" if case.target else ""
    if llama:
        whole, fill = others
        met = " ✓" if case.target and whole / micro >= case.target else ""
        cells += [f"{whole:.1f}", f"{fill:.1f}", f"{whole / micro:.1f}{met}", target,
                  f"{(whole - fill) / micro:.1f}"]  # fmt: skip
    else:
        cells += [""] * 5
    if torch_:  # apart: its tens of megabytes would evict the others' caches
        beside, other = measure([ours.sample, torch_.sample], rows, seconds / 3, statistics.median)
        cells += [f"{other:.0f}", f"{other / beside:.0f}"]
    else:
        cells += ["", ""]
    return cells


BATCHES, THREADS = (1, 8, 64), (1, 2)


def one_by_one(chains: list[S.SamplerChain], rows: Any) -> list[int]:
    return [chain.sample(row) for chain, row in zip(chains, rows, strict=True)]


def batch_lines(n: int, seconds: float) -> Iterator[list[str]]:
    """`sample_batch` of the default chain: microseconds per row."""
    template = next(case for case in cases() if case.stem == "chain").ours(n)
    for size in BATCHES:
        rows = np.stack([model_like(n, i) for i in range(min(size, 8))])[np.arange(size) % 8]
        chains = [template.clone() for _ in range(size)]
        steps: list[Step] = [partial(one_by_one, chains)]
        steps += [partial(S.sample_batch, chains, n_threads=t) for t in THREADS]
        times = [t / size for t in measure(steps, [rows], seconds, min)]
        yield [str(size), *(f"{t:.1f}" for t in times), f"{times[1] / times[2]:.2f}"]


HEAD = (
    "work", "aleator us:", "llama.cpp us:", "of it, candidates:", "ratio:", "target:", "ratio without:",
    "transformers us:", "ratio:",
)  # fmt: skip
BATCH_HEAD = (
    "rows:",
    "one by one, us per row:",
    "sample_batch, 1 thread:",
    "2 threads:",
    "speed-up:",
)


def main() -> None:
    asked = parser(__doc__, out="also write the tables to this file")
    asked.add_argument("--vocab", type=int, nargs="+", default=[32000, 128256, 151936, 262144])
    asked.add_argument("--seconds", type=float, default=1.5, help="per line")
    asked.add_argument("--quick", action="store_true", help="128,256 only, about a minute")
    asked.add_argument("--only", default="", help="cases with this in their name or file")
    args = asked.parse_args()
    if args.quick:
        args.vocab, args.seconds = [128256], 0.3
    torch.set_num_threads(1)
    report = Report(
        "Host chains against llama.cpp and transformers",
        machine("aleator", "llama-cpp-python", "transformers", "torch"),
        f"    {command(__file__)}",
    )
    chosen = [case for case in cases() if args.only in f"{case.stem} {case.name}"]
    for n in args.vocab:
        report.say(f"## V = {n:,}", "")
        report.table(*HEAD)
        for case in chosen:
            report.row(*line(case, n, args.seconds))
        report.say("")
        if not args.only or args.only in "sample_batch":
            report.say(f"`sample_batch`, default chain, V = {n:,}", "")
            report.table(*BATCH_HEAD)
            for cells in batch_lines(n, args.seconds):
                report.row(*cells)
            report.say("")
    report.write(args.out)


if __name__ == "__main__":
    main()
