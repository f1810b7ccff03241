"""How a prompt and decoding requests (writers) affect each other: a part of bench_engine.py."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import aleator
from aleator.engine.options import EngineOptions

sys.path.append(str(Path(__file__).resolve().parent.parent / "tools"))
from run_report import Report


@dataclass
class Stretch:
    """What readers of streams saw in an interval.

    Attributes:
        speed: Tokens per second of one stream.
        pauses: Seconds between two tokens of a stream, of all streams.
    """

    speed: float
    pauses: np.ndarray


class Writers:
    """Streams of a few hundred tokens each, one after the other, and when their tokens came."""

    TOKENS = 256

    def __init__(self, engine: aleator.Engine, n: int) -> None:
        self._engine, self._stopped = engine, threading.Event()
        self._pauses: list[list[tuple[float, float]]] = [[] for _ in range(n)]  # ends, and lengths
        self._threads = [threading.Thread(target=self._read, args=(i,)) for i in range(n)]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _read(self, i: int) -> None:
        # The first texts have different lengths, so that not all begin anew at once.
        left = self.TOKENS * (i + 1) // len(self._threads)
        for seed in range(i, 10**9, len(self._threads)):
            made = self._engine.submit(f"{i}", max_tokens=left, ignore_eos=True, seed=seed)
            left, last = self.TOKENS, 0.0
            for _ in made:
                now = time.perf_counter()
                if last:
                    self._pauses[i].append((now, now - last))
                last = now
                if self._stopped.is_set():
                    made.cancel()
            if self._stopped.is_set():
                return

    def between(self, begin: float, end: float) -> Stretch:
        """What was seen between two moments."""
        found = [pause for each in self._pauses for t, pause in list(each) if begin < t <= end]
        return (
            Stretch(len(found) / sum(found), np.array(found)) if found else Stretch(0, np.zeros(1))
        )


@dataclass
class Row:
    """A prompt beside writers: seconds to its first token, and its effect on the writers."""

    alone: float
    beside: float
    usual: float
    speed: float
    pauses: np.ndarray

    @property
    def kept(self) -> tuple[bool, bool, bool]:
        """Whether each of the promises is kept."""
        slower, faster = self.beside / self.alone, self.speed / self.usual
        return slower <= 2.5, faster >= 0.5, bool(self.pauses.max() <= 0.3)


def first_token(engine: aleator.Engine, rng: np.random.Generator, length: int) -> float:
    """Seconds to the first token of a new prompt."""
    prompt = rng.integers(300, 30_000, length).tolist()
    begins = time.perf_counter()
    engine.submit(prompt, max_tokens=1, ignore_eos=True).wait()
    return time.perf_counter() - begins


def share(model: aleator.LanguageModel, max_pause: float, length: int, writers: int) -> Row:
    """Measure a prompt of a length alone, and beside writers; short ones several times, for the median."""
    rng, times, watch = np.random.default_rng(length + writers), max(1, 8192 // length), 2.0
    n_ctx = 2 * length + (writers + 2) * (Writers.TOKENS + 16)
    with aleator.Engine(model, n_seq_max=writers + 2, n_ctx=n_ctx, max_pause=max_pause) as engine:
        first_token(engine, rng, 32)
        alone = [first_token(engine, rng, length) for _ in range(times)]
        with Writers(engine, writers) as seen:
            time.sleep(watch)  # until all are decoding
            usual, found, took = [], [], []
            for _ in range(times):
                before = time.perf_counter()
                time.sleep(watch)
                begins = time.perf_counter()
                took.append(first_token(engine, rng, length))
                ends = time.perf_counter()
                time.sleep(watch)
                usual += [seen.between(before, begins), seen.between(ends, ends + watch)]
                found.append(seen.between(begins, ends))
    return Row(
        float(np.median(alone)),
        float(np.median(took)),
        float(np.mean([each.speed for each in usual])),
        float(np.mean([each.speed for each in found])),
        np.concatenate([each.pauses for each in found]),
    )


def report_pauses(args: argparse.Namespace, report: Report) -> None:
    """Measure prompts beside writers, and say which promises are kept."""
    lengths, counts = ([int(n) for n in each.split(",")] for each in (args.prompts, args.writers))
    model = aleator.load(args.model, n_threads=args.threads, n_ctx=max(lengths) + 512)
    default = EngineOptions().max_pause
    limit = default if args.max_pause is None else args.max_pause
    report.say(
        f"Prompts beside writers, `max_pause={limit:g}`; load before: {os.getloadavg()[0]:.2f}.", ""
    )
    report.table(
        "prompt, tokens:", "writers:", "first token alone, s:", "beside, s:", "times:",
        "a writer alone, tokens/s:", "beside:", "times:", "pauses: median, 99 %, longest, ms:", "kept",
    )  # fmt: skip
    rows = []
    for length in lengths:
        for writers in counts:
            row = share(model, limit, length, writers)
            rows.append(row)
            ms = ", ".join(f"{1e3 * n:.0f}" for n in np.quantile(row.pauses, (0.5, 0.99, 1.0)))
            report.row(
                length, writers, f"{row.alone:.2f}", f"{row.beside:.2f}", f"{row.beside / row.alone:.2f}",
                f"{row.usual:.1f}", f"{row.speed:.1f}", f"{row.speed / row.usual:.2f}", ms,
                ", ".join("yes" if kept else "NO" for kept in row.kept),
            )  # fmt: skip
    promises = (
        "the first token comes after 2.5 times as long as alone at most",
        "writers keep half of their speed",
        "no pause is longer than 300 ms",
    )
    report.say("", f"Load after: {os.getloadavg()[0]:.2f}.", "")
    for told, kept in zip(promises, zip(*(row.kept for row in rows), strict=True), strict=True):
        report.say(f"- {told}: {'yes' if all(kept) else f'NO, in {kept.count(False)} rows'}")
