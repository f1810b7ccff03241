"""Batches on the CPU: sample_batch, DeviceChain and the operator against torch's sort and transformers.

    python benchmarks/bench_batch.py [--rows 1 8 64] [--vocab 32000 128256] [--threads N] [--out FILE.md]
    python benchmarks/bench_batch.py --base operator    the operator alone against torch and transformers

All run in one process, interleaved, on the same float32 rows.  A figure is the least of the repetitions, which
the load of the machine affects least, in microseconds for the whole batch, one token per row; with one thread
it is processor time.  Ours and the operator draw with a seed per row; DeviceChain on the CPU runs the native
kernels, as ``sample_batch`` does.  The operator has no temperature and no penalties: it gets the rows
unchanged, and skips works that have these.  Works with "q" are its race with given noise, which no chain has.

torch is written as serving engines write it: sort descending, mask by the cumulative sum of the softmax,
scatter back, and multinomial (or division by the noise).  transformers: its warpers, softmax and multinomial.
Both take one set of parameters for the batch.  Ratios are to ``--base``; works that it lacks are left out.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers

import aleator
from aleator import ops
from aleator import samplers as S

sys.path.append(str(Path(__file__).parent.parent / "tools"))
from run_report import Report, command, machine, parser

Call = Callable[[torch.Tensor], object]
PROMPT = 64  # tokens that penalties see
FORMS = ("sample_batch", "DeviceChain", "operator", "torch", "transformers")


class Work(NamedTuple):
    """A batch's parameters, and whether the draw is a race with given noise."""

    k: int = 0
    p: float = 1.0
    m: float = 0.0
    heat: float = 1.0
    repetition: float = 1.0
    q: bool = False


WORKS = {
    "k 50, p .9": Work(50, 0.9),
    "k 50, p .9, q": Work(50, 0.9, q=True),
    "k 50, p .95, m .05": Work(50, 0.95, 0.05),
    "k 40, p .95, m .05, T .8": Work(40, 0.95, 0.05, 0.8),
    "p .95": Work(p=0.95),
    "p .95, q": Work(p=0.95, q=True),
    "m .05": Work(m=0.05),
    "draw alone": Work(),
    "q alone": Work(q=True),
    "repetition 1.1, k 50, p .9": Work(50, 0.9, repetition=1.1),
}


def model_like(rows: int, n: int, seed: int) -> torch.Tensor:
    """Rows like those of models: a wide bulk and a few hundred tokens that stand out."""
    rng = np.random.default_rng([rows, n, seed])
    x = rng.normal(0, 2, (rows, n)).astype(np.float32)
    for row in x:
        top = rng.choice(n, 300, replace=False)
        row[top] += rng.exponential(3, 300).astype(np.float32) + 6
    return torch.from_numpy(x)


def chain_of(work: Work, row: int) -> aleator.SamplerChain:
    """Our chain for a row."""
    samplers: list[Any] = [
        S.Penalties(penalty_last_n=-1, repetition_penalty=work.repetition),
        S.TopK(top_k=work.k),
        S.TopP(top_p=work.p),
        S.MinP(min_p=work.m),
        S.Temperature(temperature=work.heat),
        S.Dist(),
    ]
    chain = aleator.SamplerChain(samplers, seed=row)
    for token in range(PROMPT if work.repetition != 1 else 0):
        chain.accept(token * 7)
    return chain


def keep_still(sample: Callable[[Any], object], undo: Callable[[], None]) -> Call:
    """Undo the draws now and then, so that histories do not grow with the repetitions."""
    calls = [0]

    def call(x: torch.Tensor) -> object:
        calls[0] += 1
        if calls[0] % 256 == 0:
            undo()
        return sample(x)

    return call


def by_chains(work: Work, rows: int, n: int, threads: int) -> dict[str, Call]:
    """The chains of the host, and of a device."""
    chains = [chain_of(work, row) for row in range(rows)]
    device = aleator.DeviceChain(chain_of(work, 0), rows, n)

    def set_device() -> None:
        for row in range(rows):
            device.set_row(row, chain_of(work, row))

    def undo_chains() -> None:
        for chain in chains:
            chain.rollback(chain.position)

    set_device()
    return {
        "sample_batch": keep_still(lambda x: S.sample_batch(chains, x, threads), undo_chains),
        "DeviceChain": keep_still(device.sample, set_device),
    }


def by_operator(work: Work, rows: int, q: torch.Tensor | None) -> Call:
    """The operator with q, or its keyed draw."""
    top_k, top_p = torch.full((rows,), work.k, dtype=torch.int32), torch.full((rows,), work.p)
    min_p = torch.full((rows,), work.m) if work.m else None
    seeds, positions = torch.arange(rows), torch.zeros(rows, dtype=torch.int64)
    if q is not None:
        return lambda x: ops.top_k_top_p_sample(x, top_k, top_p, q, min_p)
    return lambda x: ops.top_k_top_p_draw(x, top_k, top_p, min_p, seeds=seeds, positions=positions)


def by_torch(work: Work, history: torch.Tensor, q: torch.Tensor | None) -> Call:
    """Filters by one sort of the whole row, and a draw."""

    def call(x: torch.Tensor) -> torch.Tensor:
        if work.repetition != 1:
            seen = x.gather(1, history)
            scale = work.repetition
            x = x.scatter(1, history, torch.where(seen < 0, seen * scale, seen / scale))
        if work.heat != 1:
            x = x / work.heat
        if work.m:
            probs = x.softmax(-1)
            x = x.masked_fill(probs < work.m * probs.amax(-1, keepdim=True), -torch.inf)
        if work.k or work.p < 1:
            values, ids = x.sort(-1, descending=True)
            if work.k:
                values[:, work.k :] = -torch.inf
            if work.p < 1:
                probs = values.softmax(-1)
                values[probs.cumsum(-1) - probs >= work.p] = -torch.inf
            x = torch.empty_like(x).scatter_(-1, ids, values)
        probs = x.softmax(-1)
        return probs.multinomial(1) if q is None else probs.div(q).argmax(-1)

    return call


def by_transformers(work: Work, history: torch.Tensor) -> Call:
    """transformers' processors, softmax, multinomial."""
    t = transformers
    chain: list[Any] = [
        *([t.RepetitionPenaltyLogitsProcessor(work.repetition)] if work.repetition != 1 else []),
        *([t.TemperatureLogitsWarper(work.heat)] if work.heat != 1 else []),
        *([t.TopKLogitsWarper(work.k)] if work.k else []),
        *([t.TopPLogitsWarper(work.p)] if work.p < 1 else []),
        *([t.MinPLogitsWarper(work.m)] if work.m else []),
    ]

    def call(x: torch.Tensor) -> torch.Tensor:
        for each in chain:
            x = each(history, x)
        return x.softmax(-1).multinomial(1)

    return call


def forms(work: Work, rows: int, n: int, threads: int, base: str) -> dict[str, Call]:
    """The measured calls, by column."""
    q = torch.empty(rows, n).exponential_() if work.q else None
    history = torch.arange(PROMPT).mul(7).expand(rows, -1).contiguous()
    made = by_chains(work, rows, n, threads) if base != "operator" and q is None else {}
    if work.repetition == 1 and (base != "operator" or work.heat == 1):
        made["operator"] = by_operator(work, rows, q)
    made["torch"] = by_torch(work, history, q)
    return made | ({} if work.q else {"transformers": by_transformers(work, history)})


def measure(
    calls: dict[str, Call], inputs: list[torch.Tensor], seconds: float, clock: Callable[[], float]
) -> dict[str, float]:
    """The least times in microseconds, interleaved."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    end, turn = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or turn < 2:
        x = inputs[turn % len(inputs)]
        for name, call in calls.items():
            for again in range(3):  # the first one finds the other side's data in the caches
                began = clock()
                call(x)
                samples[name].append((clock() - began) * 1e6)
                if again == 0 and samples[name][-1] > 5e4:
                    break
        turn += 1
    return {name: min(took) for name, took in samples.items()}


def main() -> None:
    asked = parser(__doc__, out="Markdown")
    asked.add_argument("--rows", type=int, nargs="*", default=[1, 8, 64])
    asked.add_argument("--vocab", type=int, nargs="*", default=[32000, 128256])
    asked.add_argument("--base", choices=FORMS[:3:2], default=FORMS[0])
    asked.add_argument("--threads", type=int, default=os.cpu_count())
    asked.add_argument("--seconds", type=float, default=3.0, help="per line")
    options = asked.parse_args()
    torch.set_num_threads(options.threads)
    # With one thread: processor time, which other programs do not add to.
    clock = time.process_time if options.threads == 1 else time.perf_counter
    base, *others = FORMS[FORMS.index(options.base) :]
    report = Report(
        "Batches on the CPU against torch and transformers",
        f"{machine('torch', 'transformers')}; {options.threads} threads, float32 rows, least times in "
        f"microseconds, by {clock.__name__}.",
        f"    {command(__file__)}",
    )
    pairs = [title for name in others for title in (f"{name}:", "ratio:")]
    report.table("work", "B:", "V:", f"{base}:", *pairs)
    for n in options.vocab:
        for rows in options.rows:
            inputs = [model_like(rows, n, i) for i in range(3)]
            for name, work in WORKS.items():
                calls = forms(work, rows, n, options.threads, base)
                if base not in calls:
                    continue
                us = measure(calls, inputs, options.seconds, clock)
                cells = [f"{us[base]:.0f}"]
                for form in others:
                    took = us.get(form)
                    cells += ["", ""] if took is None else [f"{took:.0f}", f"{took / us[base]:.1f}"]
                report.row(name, rows, n, *cells)
    report.write(options.out)


if __name__ == "__main__":
    main()
