"""Counts rows for which two forms of a chain choose different tokens: there should be none.

    python tools/equality.py [--rows 1000000] [--large 1000] [--sharded 8000] [--triton 300]
                             [--device cpu|cuda] [--workers N] [--seed N] [--out FILE.md]

Random rows, chains, histories and seeds go to every form: the NumPy references (docs/numerics.md), the
native kernels of the host, the PyTorch form, and the Triton form (on the CPU under Triton's interpreter, and
fewer rows; with --device cuda all of them).  The rows of a batch differ in chain, parameters and kind of
logits; the host and the PyTorch form see some of them again in another order and in batches of other sizes.
With --sharded the vocabulary is split over 2 and 4 processes.  Each chain draws four times, so that its state
changes.  A block depends only on its number and the seed; mismatches are printed with what recreates the block.
Ctrl-C stops and prints the results so far.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import quick_interpreter
import torch
from equality_rows import CHAINS, DTYPES, OPTIONAL, Rows, default, rows_of
from run_report import Report, command, machine, parser, progress, table_head, table_row

from aleator.core.errors import LogitsError, ParameterError
from aleator.device.chain import DeviceChain
from aleator.samplers import ReferenceChain, SamplerChain, sample_batch
from aleator.samplers import index as S

STEPS = 4
SIZES = {16: 0.28, 64: 0.31, 256: 0.30, 1024: 0.08, 4096: 0.03}
"""Vocabularies, and their share of the rows."""
LARGE = (128_256, 151_936)
SHARD_RANKS = (2, 4)
TORCH_DTYPES = {name: getattr(torch, name) for name in DTYPES}


@dataclass
class Block:
    """Rows that go to the forms together."""

    seed: int
    number: int
    n: int
    batch: int
    name: str = ""
    template: list[Any] = field(default_factory=list)
    chains: list[SamplerChain] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        r = random.Random(f"{self.seed} {self.number} {self.n} {self.batch}")
        rng = np.random.default_rng(r.randrange(2**63))
        names = list(CHAINS)
        self.name = r.choices(names, [CHAINS[name][1] for name in names])[0]
        make = CHAINS[self.name][0]
        self.template = make(r, self.n)
        for _ in range(self.batch):
            samplers = make(r, self.n)
            if self.name in OPTIONAL:
                samplers = [s for s in samplers[:-1] if r.random() < 0.7] + samplers[-1:]
            chain = SamplerChain(samplers, seed=r.randrange(2**64), completion=r.randrange(5))
            for token in r.choices(range(min(self.n, 40)), k=r.randrange(7)):
                chain.accept(token)
            self.chains.append(chain)
        dtype = TORCH_DTYPES[r.choices(list(DTYPES), list(DTYPES.values()))[0]]
        rows = [torch.from_numpy(rows_of(rng, self.batch, self.n)) for _ in range(STEPS)]
        self.logits = [z.to(dtype) for z in rows]

    def __str__(self) -> str:
        return f"Block(seed={self.seed}, number={self.number}, n={self.n}, batch={self.batch})"


Tokens = list[list[int]]
"""The tokens of each row in each step; -1 if no token can be chosen."""


def by_reference(block: Block) -> Tokens:
    references = []
    for chain in block.chains:
        reference = ReferenceChain(chain)
        for token in chain.history:
            reference.accept(token)
        references.append(reference)
    steps = [rows.float().numpy() for rows in block.logits]
    return [[_drawn(r, z) for r, z in zip(references, rows, strict=True)] for rows in steps]


def _drawn(reference: ReferenceChain, z: Rows) -> int:
    try:
        token = reference.apply(z).selected
    except LogitsError:
        return -1
    assert token is not None  # noqa: S101
    reference.accept(token, generated=True)
    return token


def by_host(block: Block) -> Tokens:
    chains = [chain.clone() for chain in block.chains]
    return [_sampled(chains, rows) for rows in block.logits]


def by_host_reordered(block: Block) -> Tokens:
    """The host's tokens with the rows in another order and in batches of other sizes."""
    r = random.Random(block.number)
    chains = [chain.clone() for chain in block.chains]
    found = []
    for rows in block.logits:
        tokens, order = [-1] * block.batch, r.sample(range(block.batch), block.batch)
        while order:
            part = [order.pop() for _ in range(min(len(order), r.randrange(1, 9)))]
            drawn = _sampled([chains[i] for i in part], rows[part])
            for i, token in zip(part, drawn, strict=True):
                tokens[i] = token
        found.append(tokens)
    return found


def _sampled(chains: Sequence[SamplerChain], rows: Any) -> list[int]:
    try:
        return sample_batch(chains, rows, 1)
    except LogitsError:  # some row has no token to choose: nothing has changed
        return [sampled_alone(chain, z) for chain, z in zip(chains, rows, strict=True)]


def sampled_alone(chain: SamplerChain, z: Any) -> int:
    try:
        return chain.sample(z)
    except LogitsError:
        return -1


def by_device(block: Block, kernels: str, device: str) -> Tokens:
    chain = DeviceChain(
        block.template, block.batch, block.n, device=device, max_tokens=32, kernels=kernels
    )
    for row, each in enumerate(block.chains):
        chain.set_row(row, each)
    return [chain.sample(rows.to(device)).tolist() for rows in block.logits]


def by_device_reordered(block: Block, kernels: str, device: str) -> Tokens:
    """The device's tokens with the rows in another order, among other rows of a larger batch."""
    r = random.Random(block.number + 1)
    size = block.batch + r.randrange(4)
    order = r.sample(range(size), size)  # row i of the chain becomes row order[i] of the block
    chain = DeviceChain(
        block.template, size, block.n, device=device, max_tokens=32, kernels=kernels
    )
    for row, each in enumerate(block.chains):
        chain.set_row(row, each)
    chain.permute(order)
    found = []
    for rows in block.logits:
        given = torch.zeros(size, block.n, dtype=rows.dtype)
        at = [order.index(row) for row in range(block.batch)]
        given[at] = rows
        tokens = chain.sample(given.to(device)).tolist()
        found.append([tokens[i] for i in at])
    return found


@dataclass
class Outcome:
    """Counts of rows by (vocabulary, form) and by chain, and where forms differ."""

    rows: Counter[tuple[int, str]] = field(default_factory=Counter)
    chains: Counter[str] = field(default_factory=Counter)
    wrong: Counter[tuple[int, str]] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    skipped: set[str] = field(default_factory=set)

    def add(self, other: Outcome) -> None:
        self.rows += other.rows
        self.chains += other.chains
        self.wrong += other.wrong
        self.examples += other.examples
        self.skipped |= other.skipped

    def compare(self, block: Block, form: str, tokens: Tokens, wanted: Tokens) -> None:
        """Count a form's tokens; those that are not the reference's are wrong."""
        self.rows[block.n, form] += block.batch * STEPS
        for step, (mine, right) in enumerate(zip(tokens, wanted, strict=True)):
            bad = [row for row in range(block.batch) if mine[row] != right[row]]
            self.wrong[block.n, form] += len(bad)
            self.examples += [
                f"{form}: {block}, {block.name}, step {step}, row {row}: {mine[row]}, not {right[row]}"
                for row in bad[:2]
            ]


@dataclass(frozen=True)
class Work:
    """A block, and the forms that compute it besides the reference and the host."""

    seed: int
    number: int
    n: int
    batch: int
    device: str
    forms: tuple[str, ...]


def do(work: Work) -> Outcome:
    """Compute one block by all forms."""
    torch.set_num_threads(1)
    block, found = Block(work.seed, work.number, work.n, work.batch), Outcome()
    wanted = by_reference(block)
    found.chains[block.name] += block.batch * STEPS
    found.rows[block.n, "NumPy"] += block.batch * STEPS
    found.compare(block, "host", by_host(block), wanted)
    if work.number % 4 == 0:
        found.compare(block, "host, reordered", by_host_reordered(block), wanted)
    for form in work.forms:
        on = f"{form} ({work.device})"
        try:
            found.compare(block, on, by_device(block, form, work.device), wanted)
            if work.number % 4 == 1:
                tokens = by_device_reordered(block, form, work.device)
                found.compare(block, f"{on}, reordered", tokens, wanted)
        except ParameterError as error:
            if error.parameter != "kernels":
                raise
            found.skipped.add(f"{form}: {error}")
    return found


def works(options: argparse.Namespace) -> Iterator[Work]:
    """The blocks of a run, the slowest first."""
    number = 0
    on_gpu = options.device != "cpu"
    forms = ("torch", "triton") if on_gpu else ("torch",)
    for rows, sizes, some in (
        (options.large, dict.fromkeys(LARGE, 1 / len(LARGE)), forms),
        (options.rows, dict(reversed(SIZES.items())), forms),
        (0 if on_gpu else options.triton, {64: 0.7, 300: 0.3}, ("triton",)),
    ):
        for n, part in sizes.items():
            batch = max(2, min(256, 65_536 // n)) if some != ("triton",) else 4
            left = round(rows * part)
            while left > 0:
                number += 1
                yield Work(options.seed, number, n, batch, options.device, some)
                left -= batch * STEPS


def sharded_chain(r: random.Random, n: int) -> list[Any]:
    """A chain for parts of a vocabulary; without a top-k some samplers have no such form."""
    made = default(r, n)
    if r.random() < 0.5:
        made[3] = S.TopK(top_k=r.randrange(1, 40))
        return [*made[:2], *made[3:]]
    return [made[0], made[1], made[2], made[5], made[6], made[8], made[9]]


def run_rank(rank: int, ranks: int, store: str, out: str, seed: int, rows: int) -> None:
    """One part of a vocabulary; rank 0 compares with the host."""
    import torch.distributed as dist

    from aleator.device.sharding import ShardedChain

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    batch, done, wrong, sent, number = 128, 0, 0, 0, 0
    while done < rows:
        number += 1
        r = random.Random(f"{seed} shards {number}")
        n = r.choice((37, 256, 1000))
        inner = sorted(r.sample(range(1, n), ranks - 1))
        first, end = [0, *inner, n][rank : rank + 2]
        samplers = sharded_chain(r, n)
        rng = np.random.default_rng([seed, number])
        chains = [SamplerChain(samplers, seed=r.randrange(2**64)) for _ in range(batch)]
        part = ShardedChain(samplers, batch, n, first=first, max_top_k=min(40, n), max_tokens=16)
        for row, chain in enumerate(chains):
            part.set_row(row, chain)
        for _ in range(STEPS):
            z = rows_of(rng, batch, n)
            tokens = part.sample(torch.from_numpy(z[:, first:end])).tolist()
            done += batch
            sent += part.exchanged * batch
            if rank == 0:
                wanted = _sampled(chains, z)
                wrong += sum(a != b for a, b in zip(tokens, wanted, strict=True))
    if rank == 0:
        Path(out).write_text(f"{done} {wrong} {sent / done:.0f}")
    dist.destroy_process_group()


def by_shards(ranks: int, seed: int, rows: int) -> tuple[int, int, int]:
    """Rows, mismatches, and bytes that a rank sends per row."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch.multiprocessing

    spawn: Any = torch.multiprocessing.spawn  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        store, out = f"{folder}/store", f"{folder}/out"
        spawn(run_rank, (ranks, store, out, seed, rows), nprocs=ranks)
        done, wrong, sent = map(int, Path(out).read_text().split())
    return done, wrong, sent


def table(found: Outcome) -> list[str]:
    """Rows and mismatches of each form by vocabulary, and rows by chain."""
    sizes = sorted({n for n, _ in found.rows})
    lines = table_head("form", *(f"V = {n:,}:" for n in sizes), "rows:", "mismatches:")
    for form in dict.fromkeys(form for _, form in found.rows):
        counts = [found.rows[n, form] for n in sizes]
        wrong = sum(found.wrong[n, form] for n in sizes)
        cells = [f"{count:,}" if count else "" for count in counts]
        lines.append(table_row(form, *cells, f"{sum(counts):,}", f"{wrong:,}"))
    chains = ", ".join(f"{name} {count:,}" for name, count in found.chains.most_common())
    return [*lines, "", f"Rows by chain: {chains}.", *sorted(found.skipped)]


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parser(__doc__, out="Markdown with the table, machine and command")
    asked.add_argument("--rows", type=int, default=1_000_000, help="of up to 4,096 tokens")
    asked.add_argument("--large", type=int, default=1_000, help="rows of 128,256 tokens and more")
    asked.add_argument("--sharded", type=int, default=8_000, help="rows over 2 and over 4 ranks")
    asked.add_argument("--triton", type=int, default=300, help="rows under Triton's interpreter")
    asked.add_argument("--device", default="cpu")
    asked.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    asked.add_argument("--seed", type=int, default=1)
    options = asked.parse_args(arguments)
    on_gpu = options.device != "cpu"
    if not on_gpu:
        os.environ["TRITON_INTERPRET"] = "1"  # for the workers, before they import Triton
    started, found, shards, ended = time.perf_counter(), Outcome(), [], ""
    todo = list(works(options))
    goal = sum(work.batch * STEPS for work in todo)
    done = 0
    workers = 1 if on_gpu else options.workers
    pool = multiprocessing.get_context("spawn").Pool(workers, initializer=_quiet)
    try:
        for outcome in pool.imap_unordered(do, todo, chunksize=4):
            found.add(outcome)
            done += sum(outcome.chains.values())
            rate, bad = done / (time.perf_counter() - started), sum(found.wrong.values())
            progress(f"{done:,} of {goal:,} rows, {rate:,.0f} a second, {bad} wrong")
        for ranks in SHARD_RANKS if options.sharded else ():
            progress(f"{ranks} ranks ...")
            rows = options.sharded // len(SHARD_RANKS)
            shards.append((ranks, *by_shards(ranks, options.seed, rows)))
    except KeyboardInterrupt:
        ended = f"Ended by hand: {done:,} of {goal:,} rows."
        pool.terminate()
    pool.close()
    seconds = time.perf_counter() - started
    progress("")
    wrong = sum(found.wrong.values()) + sum(each[2] for each in shards)
    gpu = torch.cuda.get_device_name() if on_gpu else "no GPU"
    report = Report(
        "Rows on which forms of a chain differ",
        f"{machine('torch')}, {gpu}; {seconds:,.0f} seconds with {workers} workers.",
        f"    {command(__file__, arguments)}",
        "Every token is compared with that of the NumPy reference; -1, nothing to choose, counts as one. "
        "On the CPU the Triton form runs under its interpreter.",
    )
    report.say(*table(found), "")
    for ranks, n, bad, sent in shards:
        report.say(
            f"Sharded over {ranks} ranks against the host: {n:,} rows, {bad:,} mismatches, {sent:,} bytes "
            f"sent per rank and row on average."
        )
    report.say("", f"**{wrong:,} mismatches.**", *([ended] if ended else []))
    report.say(*(f"    {line}" for line in found.examples[:20]))
    report.write(options.out)
    return 1 if wrong or ended else 0


def _quiet() -> None:
    """Leave Ctrl-C to the parent, and silence NumPy's warnings about masked lanes."""
    import signal
    import warnings

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore", RuntimeWarning)
    quick_interpreter.install()


if __name__ == "__main__":
    sys.exit(main())
