"""The operator on the CPU against torch's sort and multinomial, and transformers' processors.

    python benchmarks/bench_operator.py [--rows 1 8 64] [--vocab 32000 128256] [--threads N] [--out FILE.md]

All in one process, interleaved, on the same float32 rows; a figure is the least of the repetitions, which the
load of the machine changes least.  Each side selects one token per row.  torch is written as serving
engines write it: sort descending, mask by the cumulative sum of the softmax, scatter back, and multinomial
(or division by exponential noise where the operator gets its q).  transformers: TopKLogitsWarper,
TopPLogitsWarper, MinPLogitsWarper, softmax and multinomial, with one value for the batch because that is
all they take.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from aleator import ops
from aleator.core import host

Work = Callable[[torch.Tensor], object]


def model_like(rows: int, n: int, seed: int) -> torch.Tensor:
    """Rows as models give them: a wide bulk and a few hundred tokens that stand out."""
    rng = np.random.default_rng([rows, n, seed])
    x = rng.normal(0, 2, (rows, n)).astype(np.float32)
    for row in x:
        top = rng.choice(n, 300, replace=False)
        row[top] += rng.exponential(3, 300).astype(np.float32) + 6
    return torch.from_numpy(x)


def sort_based(k: int, p: float, m: float, q: torch.Tensor | None) -> Work:
    """Filters by one sort of the whole row, and a draw."""

    def work(x: torch.Tensor) -> torch.Tensor:
        if m:
            probs = x.softmax(-1)
            x = x.masked_fill(probs < m * probs.amax(-1, keepdim=True), -torch.inf)
        if k or p < 1:
            values, ids = x.sort(-1, descending=True)
            if k:
                values[:, k:] = -torch.inf
            if p < 1:
                probs = values.softmax(-1)
                values[probs.cumsum(-1) - probs >= p] = -torch.inf
            x = torch.empty_like(x).scatter_(-1, ids, values)
        probs = x.softmax(-1)
        if q is not None:
            return probs.div(q).argmax(-1)
        return probs.multinomial(1)

    return work


def processors(k: int, p: float, m: float) -> Work:
    """transformers' warpers, softmax, multinomial."""
    chain: list[Any] = []
    if k:
        chain.append(TopKLogitsWarper(k))
    if p < 1:
        chain.append(TopPLogitsWarper(p))
    if m:
        chain.append(MinPLogitsWarper(m))
    ids = torch.zeros(1, 1, dtype=torch.int64)

    def work(x: torch.Tensor) -> torch.Tensor:
        for warper in chain:
            x = warper(ids, x)
        return x.softmax(-1).multinomial(1)

    return work


def ours(rows: int, k: int, p: float, m: float, q: torch.Tensor | None) -> Work:
    """The operator with q, or its keyed draw."""
    top_k, top_p = torch.full((rows,), k, dtype=torch.int32), torch.full((rows,), p)
    min_p = torch.full((rows,), m) if m else None
    seeds, positions = torch.arange(rows), torch.zeros(rows, dtype=torch.int64)

    def work(x: torch.Tensor) -> object:
        if q is not None:
            return ops.top_k_top_p_sample(x, top_k, top_p, q, min_p)
        return ops.top_k_top_p_draw(x, top_k, top_p, min_p, seeds=seeds, positions=positions)

    return work


WORKS: dict[str, tuple[int, float, float, bool]] = {
    "k 50, p .9, draw": (50, 0.9, 0.0, False),
    "k 50, p .9, q": (50, 0.9, 0.0, True),
    "k 50, p .95, m .05, draw": (50, 0.95, 0.05, False),
    "p .95, draw": (0, 0.95, 0.0, False),
    "p .95, q": (0, 0.95, 0.0, True),
    "q alone": (0, 1.0, 0.0, True),
    "draw alone": (0, 1.0, 0.0, False),
}


def measure(
    calls: list[Work], inputs: list[torch.Tensor], budget: float, clock: Callable[[], float]
) -> list[float]:
    """The least times in microseconds, interleaved."""
    samples: list[list[float]] = [[] for _ in calls]
    end, turn = time.perf_counter() + budget, 0
    while time.perf_counter() < end or turn < 2:
        x = inputs[turn % len(inputs)]
        for took, call in zip(samples, calls, strict=True):
            for again in range(3):  # the first one finds the other side's data in the caches
                began = clock()
                call(x)
                took.append((clock() - began) * 1e6)
                if again == 0 and took[-1] > 5e4:
                    break
        turn += 1
    return [min(took) for took in samples]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 64])
    parser.add_argument("--vocab", type=int, nargs="*", default=[32000, 128256])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=3.0, help="per line")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    # With one thread: processor time, which other programs do not add to.
    clock = time.process_time if options.threads == 1 else time.perf_counter
    processor = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(
            (v.split(":")[1].strip() for v in lines if v.startswith("model name")), processor
        )
    text = [
        "# The operator on the CPU against torch and transformers", "",
        f"{datetime.date.today()}, {processor}, {os.cpu_count()} processors, kernels {host.isa()}, "
        f"torch {torch.__version__} with {options.threads} threads, transformers "
        f"{transformers.__version__}; float32 rows, least times in microseconds, by {clock.__name__}.", "",
        f"    python benchmarks/{' '.join([Path(sys.argv[0]).name, *sys.argv[1:]])}", "",
        "| work | B | V | Aleator | torch | ratio | transformers | ratio |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    print("\n".join(text), flush=True)
    for n in options.vocab:
        for rows in options.rows:
            inputs = [model_like(rows, n, i) for i in range(3)]
            for name, (k, p, m, race) in WORKS.items():
                q = torch.empty(rows, n).exponential_() if race else None
                calls = [ours(rows, k, p, m, q), sort_based(k, p, m, q)]
                if not race:
                    calls.append(processors(k, p, m))
                us = measure(calls, inputs, options.seconds, clock)
                cells = [f"{us[0]:.0f}", f"{us[1]:.0f}", f"{us[1] / us[0]:.1f}"]
                cells += [f"{us[2]:.0f}", f"{us[2] / us[0]:.1f}"] if len(us) > 2 else ["", ""]
                text.append(f"| {name} | {rows} | {n} | {' | '.join(cells)} |")
                print(text[-1], flush=True)
    if options.out:
        options.out.write_text("\n".join(text) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
