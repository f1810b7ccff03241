"""Batches on the CPU: sample_batch, DeviceChain and the operator against torch's sort and transformers.

    python benchmarks/bench_batch.py [--rows 1 8 64] [--vocab 32000 128256] [--threads N] [--out FILE.md]

All in one process, interleaved, on the same float32 rows; a figure is the least of the repetitions, in
microseconds for the whole batch, one token per row.  Ours and the operator draw with a seed of each row's;
DeviceChain on the CPU runs the native kernels, as ``sample_batch`` does.  The operator has no temperature
and no penalties: it gets the rows as they are, and sits out the last work.  torch and transformers are written
as in bench_operator.py, with one set of parameters for the batch because that is what they take.  Ratios are
to ``sample_batch``.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from bench_operator import Work, measure, model_like, ours, processors, sort_based
from transformers import RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper

import aleator
from aleator import samplers as S
from aleator.core import host

sys.path.append(str(Path(__file__).parent.parent / "tools"))
from equality import processor

PROMPT = 64  # tokens that penalties see
WORKS: dict[str, tuple[int, float, float, float, float]] = {
    # top-k, top-p, min-p, temperature, repetition penalty
    "k 50, p .9": (50, 0.9, 0.0, 1.0, 1.0),
    "k 40, p .95, m .05, T .8": (40, 0.95, 0.05, 0.8, 1.0),
    "p .95": (0, 0.95, 0.0, 1.0, 1.0),
    "m .05": (0, 1.0, 0.05, 1.0, 1.0),
    "draw alone": (0, 1.0, 0.0, 1.0, 1.0),
    "repetition 1.1, k 50, p .9": (50, 0.9, 0.0, 1.0, 1.1),
}
COLUMNS = ("sample_batch", "DeviceChain", "operator", "torch", "transformers")


def chain_of(work: tuple[int, float, float, float, float], row: int) -> aleator.SamplerChain:
    k, p, m, heat, repetition = work
    chain = aleator.SamplerChain(
        [
            S.Penalties(penalty_last_n=-1, repetition_penalty=repetition),
            S.TopK(top_k=k),
            S.TopP(top_p=p),
            S.MinP(min_p=m),
            S.Temperature(temperature=heat),
            S.Dist(),
        ],
        seed=row,
    )
    if repetition != 1:
        for token in range(PROMPT):
            chain.accept(token * 7)
    return chain


def keep_still(sample: Callable[[Any], object], undo: Callable[[], None]) -> Work:
    """Take back what was drawn now and then, so that histories do not grow with the repetitions."""
    calls = [0]

    def work(x: torch.Tensor) -> object:
        calls[0] += 1
        if calls[0] % 256 == 0:
            undo()
        return sample(x)

    return work


def forms(
    work: tuple[int, float, float, float, float], rows: int, n: int, threads: int
) -> dict[str, Work]:
    """What is measured, by column."""
    k, p, m, heat, repetition = work
    chains = [chain_of(work, row) for row in range(rows)]
    device = aleator.DeviceChain(chain_of(work, 0), rows, n)
    for row, chain in enumerate(chains):
        device.set_row(row, chain)

    def undo_chains() -> None:
        for chain in chains:
            chain.rollback(chain.position)

    def undo_device() -> None:
        for row in range(rows):
            device.set_row(row, chain_of(work, row))

    made: dict[str, Work] = {
        "sample_batch": keep_still(lambda x: S.sample_batch(chains, x, threads), undo_chains),
        "DeviceChain": keep_still(device.sample, undo_device),
    }
    history = torch.arange(PROMPT).mul(7).expand(rows, -1).contiguous()
    if repetition == 1:
        made["operator"] = ours(rows, k, p, m, None)
    penalty = RepetitionPenaltyLogitsProcessor(repetition) if repetition != 1 else None
    heated = TemperatureLogitsWarper(heat) if heat != 1 else None
    sort, warpers = sort_based(k, p, m, None), processors(k, p, m)

    def by_torch(x: torch.Tensor) -> object:
        if repetition != 1:
            seen = x.gather(1, history)
            seen = torch.where(seen < 0, seen * repetition, seen / repetition)
            x = x.scatter(1, history, seen)
        return sort(x / heat if heat != 1 else x)

    def by_transformers(x: torch.Tensor) -> object:
        if penalty is not None:
            x = penalty(history, x)
        return warpers(x if heated is None else heated(history, x))

    return made | {"torch": by_torch, "transformers": by_transformers}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 64])
    parser.add_argument("--vocab", type=int, nargs="*", default=[32000, 128256])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=3.0, help="per line")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    head = [f"{name} | ratio" if i else name for i, name in enumerate(COLUMNS)]
    text = [
        "# Batches on the CPU against torch and transformers", "",
        f"{datetime.date.today()}, {processor()}, {os.cpu_count()} processors, kernels {host.isa()}, torch "
        f"{torch.__version__} with {options.threads} threads, transformers {transformers.__version__}; float32 "
        "rows, least times in microseconds.", "",
        f"    python benchmarks/{' '.join([Path(sys.argv[0]).name, *sys.argv[1:]])}", "",
        f"| work | B | V | {' | '.join(head)} |",
        "|---|" + "---:|" * (2 + 2 * len(COLUMNS) - 1),
    ]  # fmt: skip
    print("\n".join(text), flush=True)
    for n in options.vocab:
        for rows in options.rows:
            inputs = [model_like(rows, n, i) for i in range(3)]
            for name, work in WORKS.items():
                by = forms(work, rows, n, options.threads)
                us = dict(
                    zip(
                        by,
                        measure(list(by.values()), inputs, options.seconds, time.perf_counter),
                        strict=True,
                    )
                )
                first = us[COLUMNS[0]]
                cells = [f"{first:.0f}"]
                for column in COLUMNS[1:]:
                    took = us.get(column)
                    cells += ["", ""] if took is None else [f"{took:.0f}", f"{took / first:.1f}"]
                text.append(f"| {name} | {rows} | {n} | {' | '.join(cells)} |")
                print(text[-1], flush=True)
    if options.out:
        options.out.write_text("\n".join(text) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
