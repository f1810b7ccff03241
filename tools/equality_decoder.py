"""Counts rows of logits whose bits depend on more than the tokens before them: there should be none.

    python tools/equality_decoder.py [--rows 100000] [--isas v4 v4-fma v3 base triton] [--workers N] [--seed N]
                                     [--models NAME ...] [--types NAME ...] [--out FILE.md]

Texts go through small random models token by token, alone, on one thread: these rows are the reference.  Then a
crowd of up to 64 sequences of the same texts goes through one context in random steps.  In each step some
sequences decode one token and others prefill several, in any order, in one or several micro-batches, on 1 to 4
threads.  Between steps sequences are forked, dropped, rewound, found in the prompt cache, and saved and
restored under another id.  Every token wants its logits, and each row is compared with the reference, bit for
bit.  Each instruction set has its own processes, all compared with the rows of the best one.  With few --rows
each model has not all types.  A crowd depends only on its seed; mismatches are printed with what recreates it.
Ctrl-C stops and prints the results so far.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import quick_interpreter
from run_report import Report, command, machine, parser, progress
from wide_models import MODELS, write_wide

from aleator.cache.prefix_index import PrefixConfig
from aleator.core import host
from aleator.core.errors import CacheFull
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights

Rows = npt.NDArray[np.float32]

TYPES = (
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ4_NL", "IQ4_XS", "MXFP4", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "TQ2_0",
)  # fmt: skip
CACHE_TYPES = (("f16", "f16"), ("f32", "f32"), ("bf16", "bf16"), ("q8_0", "q8_0"), ("q8_0", "q4_0"))
"""Types of keys and values."""
TRITON = "triton"
"""Instead of an instruction set: the decoder in Triton, on a GPU if there is one, else interpreted."""
ISAS = {"v4": ("v4", "v4-fma", "v3", "base"), "v3": ("v3", "base"), "base": ("base",)}
"""Instruction sets that a machine can use, by its best one; v4-fma is v4 without AVX512-BF16."""
FEWER = ("v4-fma", "base")
"""Instruction sets that get a quarter of the others' rows."""
TEXTS, LENGTH, COMMON = 5, 56, 20
"""Number of texts, tokens of each, and tokens of their common prefix."""
SEQUENCES = 64
LEAST = 400
"""Rows of a model in one type: the crowds get those after the first text's, token by token."""


@dataclass(frozen=True)
class Work:
    """Rows of one model to compare.

    Attributes:
        name: name of the model.
        type: type of its matrices.
        cache: types of keys and values.
        isa: instruction set of its process, or "triton".
        rows: least number of rows.
        seed: seed of the crowds.
    """

    name: str
    type: str
    cache: tuple[str, str]
    isa: str
    rows: int
    seed: int

    @property
    def stem(self) -> str:
        """The name of the reference rows, which do not depend on the instruction set."""
        return f"{self.name}-{self.type}-{'-'.join(self.cache)}"


@dataclass
class Outcome:
    """Counts of rows by kind, and where they differ."""

    rows: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        self.rows += other.rows
        self.wrong += other.wrong
        self.examples += other.examples

    def count(self, work: Work, kinds: Sequence[str], equal: bool, where: str) -> None:
        """Count one row under every heading of the report."""
        headings = [
            ("model", work.name), ("weights", work.type), ("instruction set", work.isa),
            ("keys and values", " and ".join(work.cache)), *(("composition", kind) for kind in kinds),
        ]  # fmt: skip
        for heading in headings:
            self.rows[heading] += 1
            self.wrong[heading] += not equal
        if not equal and len(self.examples) < 3:
            self.examples.append(f"{work}: {where}")

    @property
    def n_rows(self) -> int:
        return sum(n for (title, _), n in self.rows.items() if title == "model")

    @property
    def n_wrong(self) -> int:
        return sum(n for (title, _), n in self.wrong.items() if title == "model")


def texts_of(n_vocab: int) -> list[list[int]]:
    r = random.Random(7)
    start = [r.randrange(n_vocab) for _ in range(COMMON)]
    return [
        start[: COMMON - 3 * i] + [r.randrange(n_vocab) for _ in range(LENGTH - COMMON + 3 * i)]
        for i in range(TEXTS)
    ]


def decoder_of(folder: Path, work: Work) -> Any:
    path = folder / f"{work.name}-{work.type}.gguf"
    if not path.exists():
        own = path.with_suffix(f".{os.getpid()}")
        write_wide(own, MODELS[work.name], work.type).rename(path)
    if work.isa != TRITON:
        return build_decoder(open_weights(path))
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return build_decoder(open_weights(path), device, form="triton")


def right_rows(folder: Path, work: Work) -> Rows:
    """The reference rows [texts, tokens, n_vocab]: token by token, alone, on one thread."""
    path = folder / f"{work.stem}.npy"
    if not path.exists():
        rows = alone(decoder_of(folder, replace(work, isa=host.isa())), work)
        own = path.with_suffix(f".{os.getpid()}.npy")
        np.save(own, rows)
        own.rename(path)
    made: Rows = np.load(path)
    return made


def alone(decoder: Any, work: Work, texts: int = TEXTS) -> Rows:
    rows = []
    for tokens in texts_of(decoder.config.n_vocab)[:texts]:
        context = Context(
            decoder, n_ctx=LENGTH, type_k=work.cache[0], type_v=work.cache[1], n_threads=1,
            device="cpu",
        )  # fmt: skip
        rows.append(
            np.concatenate(
                [np.asarray(context.decode(Batch.one([t], i))) for i, t in enumerate(tokens)]
            )
        )
    return np.stack(rows)


@dataclass
class Member:
    """A sequence of a crowd: its text, how much of it the cache holds, and how that came there."""

    text: int
    n: int = 0
    origin: str = "fresh"


class Crowd:
    """Sequences that go through one context together."""

    def __init__(self, decoder: Any, right: Rows, work: Work, seed: int, found: Outcome) -> None:
        r = self.r = random.Random(f"{seed} {work.stem}")
        self.right, self.work, self.seed, self.found = right, work, seed, found
        self.texts = texts_of(decoder.config.n_vocab)
        self.members: dict[int, Member] = {}
        self.blobs: list[tuple[bytes, Member]] = []
        self.rewinds = not decoder.recurrent and decoder.config.window is None
        n_threads = r.choice((1, 2, 4))
        streams = r.random() < 0.15
        options: dict[str, Any] = {
            "n_ubatch": r.choice((1, 3, 8, 9, 33, 64, 512)),
            "policy": "streams" if streams else "unified",
            "n_threads": n_threads, "n_threads_batch": r.choice((1, n_threads)),
            "type_k": work.cache[0], "type_v": work.cache[1],
        }  # fmt: skip
        prefix = None if streams else PrefixConfig()
        self.options = options
        self.context = Context(
            decoder, n_ctx=LENGTH * SEQUENCES, n_seq_max=SEQUENCES, prefix=prefix, device="cpu",
            **options,
        )  # fmt: skip
        self.streams, self.step = streams, 0

    def run(self, rows: int) -> None:
        """Run steps until this many rows have been compared."""
        end = self.found.n_rows + rows
        while self.found.n_rows < end:
            self.step += 1
            try:
                self.change()
                self.decode()
            except CacheFull:
                for seq in list(self.members)[::2]:
                    self.drop(seq)

    def change(self) -> None:
        """Add and remove sequences."""
        r, cache = self.r, self.context.cache
        wanted = r.choice((1, 1, 2, 3, 8, 9, 20, SEQUENCES))
        for seq in r.sample(sorted(self.members), len(self.members)):
            member = self.members[seq]
            if member.n == LENGTH or (len(self.members) > wanted and r.random() < 0.4):
                if r.random() < 0.3 and member.n:
                    self.blobs = [(cache.state_write(seq), replace(member)), *self.blobs[:3]]
                self.drop(seq)
            elif self.rewinds and r.random() < 0.05 and member.n > 1:
                member.n = r.randrange(1, member.n)
                member.origin = "rewound"
                cache.seq_rm(seq, member.n, -1)
        while len(self.members) < wanted:
            seq = r.choice([i for i in range(SEQUENCES) if i not in self.members])
            self.members[seq] = self.joined(seq)

    def drop(self, seq: int) -> None:
        member, cache = self.members.pop(seq), self.context.cache
        if member.n and not self.streams and self.r.random() < 0.5:
            cache.keep(seq, self.texts[member.text][: member.n])
        cache.seq_rm(seq, -1, -1)

    def joined(self, seq: int) -> Member:
        """A new sequence: fresh, from the prompt cache, forked from another one, or restored."""
        r, cache = self.r, self.context.cache
        kind = r.random()
        others = [i for i, member in self.members.items() if 0 < member.n < LENGTH]
        if kind < 0.25 and others:
            source = r.choice(others)
            cache.seq_cp(source, seq)
            return replace(self.members[source], origin="forked")
        if kind < 0.4 and self.blobs:
            blob, member = r.choice(self.blobs)
            if member.n < LENGTH:
                cache.state_read(blob, seq)
                return replace(member, origin="restored")
        text = r.randrange(TEXTS)
        if kind < 0.8 and not self.streams:
            n = cache.reuse(seq, self.texts[text][: LENGTH - 1])
            if n:
                return Member(text, n, "cached prefix")
        return Member(text)

    def decode(self) -> None:
        """Decode one batch of tokens of several sequences, in order within each sequence."""
        r, batch = self.r, Batch()
        chosen = [seq for seq in self.members if self.members[seq].n < LENGTH and r.random() < 0.9]
        queues: dict[int, list[int]] = {}
        for seq in r.sample(chosen, len(chosen)):
            left = LENGTH - self.members[seq].n
            n = min(left, r.choice((1, 1, 1, 1, 2, 5, 17, LENGTH)))
            queues[seq] = list(range(self.members[seq].n, self.members[seq].n + n))
        mixed = r.random() < 0.5
        rows: list[tuple[int, int]] = []
        while queues:
            seq = r.choice(list(queues)) if mixed else next(iter(queues))
            pos = queues[seq].pop(0)
            batch.add(self.texts[self.members[seq].text][pos], pos, [seq], logits=True)
            rows.append((seq, pos))
            if not queues[seq]:
                del queues[seq]
        if not rows:
            return
        logits = np.asarray(self.context.decode(batch))
        for (seq, pos), row in zip(rows, logits, strict=True):
            self.compare(seq, pos, row, len(rows), len(chosen))
            self.members[seq].n = pos + 1

    def compare(self, seq: int, pos: int, row: Rows, size: int, beside: int) -> None:
        member = self.members[seq]
        right = self.right[member.text, pos]
        kinds = [member.origin, _size(size), "alone" if beside == 1 else "beside others"]
        equal = row.tobytes() == right.tobytes()
        where = ""
        if not equal:
            far = float(np.abs(row - right).max())
            where = (
                f"crowd {self.seed}, step {self.step}, {kinds}, position {pos}, off by {far:.3g}, "
                f"{self.options}"
            )
        self.found.count(self.work, kinds, equal, where)


def _size(tokens: int) -> str:
    ends = {1: "1 token", 8: "2 to 8 tokens", 64: "9 to 64 tokens"}
    return next((name for end, name in ends.items() if tokens <= end), "more tokens")


def do(folder: str, work: Work) -> Outcome:
    """Compute the texts alone once, then the crowds."""
    import gc

    at, found = Path(folder), Outcome()
    right, decoder = right_rows(at, work), decoder_of(at, work)
    if work.isa.partition("-")[0] not in (TRITON, host.isa()):
        raise RuntimeError(f"{work.isa} is wanted, {host.isa()} is in use")
    for pos, row in enumerate(alone(decoder, work, 1)[0]):
        equal = row.tobytes() == right[0, pos].tobytes()
        found.count(work, ["token by token"], equal, f"token by token, position {pos}")
    seed = work.seed
    while found.n_rows < work.rows:
        Crowd(decoder, right, work, seed, found).run(min(1200, work.rows - found.n_rows))
        seed += 1000
        gc.collect()
    return found


def works(options: argparse.Namespace, isas: Sequence[str]) -> Iterator[Work]:
    """Models and types, of which each takes part; cache types and instruction sets take turns."""
    shares = {isa: 0.25 if isa in FEWER and len(isas) > 1 else 1.0 for isa in isas}
    rows = options.rows / sum(shares.values())
    pairs = some_pairs(options.models, options.types, int(rows / LEAST))
    for number, (name, kind) in enumerate(pairs):
        for turn, isa in enumerate(isas):
            cache = CACHE_TYPES[(number + turn * (number % 2)) % len(CACHE_TYPES)]
            share = max(1, round(rows / len(pairs) * shares[isa]))
            yield Work(name, kind, cache, isa, share, options.seed + number)


def some_pairs(models: Sequence[str], types: Sequence[str], n: int) -> list[tuple[str, str]]:
    """About ``n`` different pairs; more if that leaves out a model or a type, fewer if there are no more."""
    swapped = len(types) > len(models)
    many, few = (types, models) if swapped else (models, types)
    pairs = [(a, few[(i + j) % len(few)]) for j in range(len(few)) for i, a in enumerate(many)]
    chosen = pairs[: max(n, len(many))]
    return [(b, a) for a, b in chosen] if swapped else chosen


def tables(report: Report, found: Outcome) -> None:
    """Rows and mismatches under each heading."""
    for title in dict.fromkeys(title for title, _ in found.rows):
        report.table(title, "rows:", "mismatches:")
        for key in (key for key in found.rows if key[0] == title):
            report.row(key[1], f"{found.rows[key]:,}", f"{found.wrong[key]:,}")
        report.say("")


def _begin() -> None:
    """Leave Ctrl-C to the parent."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    quick_interpreter.install()


def run(options: argparse.Namespace, show: bool) -> tuple[Outcome, str]:
    """Run everything; also return what stopped it early, if anything did."""
    best = host.isa()
    isas = [isa for isa in (*ISAS[best], TRITON) if isa in (options.isas or ISAS[best])]
    todo, found, ended = list(works(options, isas)), Outcome(), ""
    started = time.perf_counter()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("ALEATOR_ISA")
        try:
            # The best instruction set first: it computes the reference rows for all.
            for isa in (best, *(isa for isa in isas if isa != best)):
                os.environ["ALEATOR_ISA"] = best if isa == TRITON else isa
                if isa == TRITON and not shutil.which("nvidia-smi"):
                    os.environ["TRITON_INTERPRET"] = "1"
                # The native module chooses the instruction set when it is loaded.
                spawned = multiprocessing.get_context("spawn")
                with ProcessPoolExecutor(options.workers, spawned, _begin) as pool:
                    if isa == best:
                        stems = {work.stem: work for work in todo}.values()
                        made = [pool.submit(right_rows, Path(folder), work) for work in stems]
                        for each in made:
                            each.result()
                    jobs: list[Future[Outcome]] = [
                        pool.submit(do, folder, work) for work in todo if work.isa == isa
                    ]
                    try:
                        for job in as_completed(jobs):
                            found.add(job.result())
                            if show:
                                rate = found.n_rows / (time.perf_counter() - started)
                                progress(
                                    f"{isa}: {found.n_rows:,} of {options.rows:,} rows, "
                                    f"{rate:,.0f} a second, {found.n_wrong:,} wrong"
                                )
                    except KeyboardInterrupt:
                        ended = f"Ended by hand after {found.n_rows:,} of {options.rows:,} rows."
                        pool.shutdown(wait=True, cancel_futures=True)
                        break
        finally:
            os.environ.pop("ALEATOR_ISA")
            os.environ.pop("TRITON_INTERPRET", None)
            if before is not None:
                os.environ["ALEATOR_ISA"] = before
    return found, ended


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    asked = parser(__doc__, out="Markdown with the tables, machine and command")
    asked.add_argument("--rows", type=int, default=100_000, help="rows of logits to compare")
    asked.add_argument(
        "--models",
        nargs="+",
        metavar="NAME",
        choices=list(MODELS),
        default=list(MODELS),
        help="default: all; a wrong one prints their names",
    )
    asked.add_argument(
        "--types",
        nargs="+",
        metavar="TYPE",
        choices=TYPES,
        default=list(TYPES),
        help="default: all; a wrong one prints their names",
    )
    asked.add_argument(
        "--isas", nargs="+", help="instruction sets, or triton; without it all of this machine"
    )
    asked.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    asked.add_argument("--seed", type=int, default=1)
    return asked.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options, started = parsed(arguments), time.perf_counter()
    found, ended = run(options, True)
    seconds = time.perf_counter() - started
    report = Report(
        "Rows of logits that depend on more than their tokens",
        f"{machine()}; {seconds:,.0f} seconds with {options.workers} workers.",
        f"    {command(__file__, arguments)}",
        "Each row is compared, bit for bit, with that of its text decoded token by token, alone, on one "
        "thread, with the best instruction set.",
    )
    tables(report, found)
    report.say(f"**{found.n_rows:,} rows, {found.n_wrong:,} mismatches.**")
    report.say(*([ended] if ended else []), *(f"    {line}" for line in found.examples[:20]))
    report.write(options.out)
    return 1 if found.n_wrong or ended else 0


if __name__ == "__main__":
    sys.exit(main())
