"""How the time of a token grows with context, sequences, model and vocabulary, against llama.cpp.

    python benchmarks/bench_growth.py --prepare      makes the models only: 7 GB, ten minutes of a processor
    python benchmarks/bench_growth.py [--axes context sequences size vocabulary] [--upto X] [--most SECONDS]
        [--threads N] [--llama-python PYTHON] [--llama-bin FOLDER] [--folder MODELS] [--out STEM]
    python benchmarks/bench_growth.py --draw         the table of all points, the page and its plots

Models have random weights in Q4_K_M and cells of float16: that of 134 M parameters, but for sizes.  The engines
are bench_generate.py's and take turns in each round, llama.cpp with flash attention and without; its faster
variant counts.  Per axis:

    context      a token after x others ("filled TOKENS BEFORE"): the cache is filled without computing
    sequences    a step of one token in each of x sequences, after 16 others ("batch TOKENS SEQUENCES")
    size         a token of models of x billion parameters, at the beginning ("decode TOKENS BEFORE")
    vocabulary   a token with a vocabulary of x, drawn by the default samplers ("sampled TOKENS"), and of this
                 the draw alone ("drawn TOKENS")

After --most SECONDS of an order no new round begins; a point is left out, and noted so, if one round of it
would take longer, judged by the one before in proportion to x, up to four times.  A quiet machine of two cores
takes some ten minutes.
Each point is written to STEM.jsonl as it comes, and the same command goes on after an interruption; with a
larger --most it also measures what was left out; --again starts anew.  Exponents are those of log(time) over
log(x), over as many of the last points as lie within 10 % of the fit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import date
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from bench_generate import PACKAGES, made
from generate_turns import Worker, add_options, asked, in_turns, opened, run_facts

from aleator.models import open_weights

sys.path.append(str(Path(__file__).resolve().parent.parent / "tools"))
import growth
from run_report import RESULTS, ROOT, command, parser

TYPE = "Q4_K_M"
SMALL = "134m"
ROUNDS = 5
STEEPEST = 4
"""A round takes at most this many times as long as that of the point before."""


class Point(NamedTuple):
    """A point of an axis.

    Attributes:
        axis: its name.
        x: its place.
        size: the model.
        n_vocab: its vocabulary; 0: its own.
        orders: what is measured: steps, then draws alone if they are.
        steps: steps of an order.
    """

    axis: str
    x: float
    size: str
    n_vocab: int
    orders: tuple[str, ...]
    steps: int


def points() -> list[Point]:
    """All points; those of an axis by x, so that each says what the next one takes."""
    contexts = (1, 512, 2048, 8192, 32768)
    vocabularies = (32_000, 64_000, 128_000, 256_000)
    return [
        *(Point("context", x, SMALL, 0, (f"filled 16 {x}",), 16) for x in contexts),
        *(Point("sequences", 2**i, SMALL, 0, (f"batch 8 {2**i}",), 8) for i in range(9)),
        *(
            Point("size", x, size, 0, ("decode 16 0",), 16)
            for size, x in (("134m", 0.134), ("1b", 0.943), ("3b", 3.015), ("7b", 6.738))
        ),
        *(
            Point("vocabulary", x, SMALL, x if x != 32_000 else 0, ("sampled 32", "drawn 32"), 32)
            for x in vocabularies
        ),
    ]


def parameters(path: Path) -> float:
    """Millions of a file's parameters."""
    weights = open_weights(path)
    return sum(prod(weights.stored(name).shape) for name in weights.names()) / 1e6


def measured(point: Point, workers: dict[str, Worker], options: argparse.Namespace) -> growth.Row:
    """A point's row, with the seconds of one round."""
    row: growth.Row = {"axis": point.axis, "x": point.x}
    began, rounds = time.monotonic(), 0

    def count() -> None:
        nonlocal rounds
        rounds += 1

    for words, name in zip(point.orders, ("ms", "drawing_ms"), strict=False):
        order = asked(words, options.rounds)
        found = in_turns(workers, order, options, count)
        each = order[2] / point.steps  # tokens of a step
        row[name] = {who: 1000 * each / speed for who, speed in found.items()}
    return row | {"rounds": rounds, "round_s": (time.monotonic() - began) / max(rounds, 1)}


def run(todo: Sequence[Point], out: Path, options: argparse.Namespace) -> None:
    """Measure points, each after the one before; those that the file has measured are skipped."""
    _, rows = growth.read(out)
    known = {(row["axis"], row["x"]): row for row in rows}
    workers: dict[str, Worker] = {}
    open_path: Path | None = None
    before: tuple[Point, float] | None = None
    for point in todo:
        found = known.get((point.axis, point.x), {})
        if "ms" in found:
            before = point, found["round_s"]
            continue
        expected = 0.0
        if before and before[0].axis == point.axis:
            expected = before[1] * min(point.x / before[0].x, STEEPEST)
        if expected > options.most:
            row: growth.Row = {"axis": point.axis, "x": point.x}
            row["left_out"] = f"a round would take some {expected:.0f} s"
        else:
            path = made(options.folder, point.size, TYPE, point.n_vocab)
            if path != open_path:
                close(workers)
                workers, open_path = opened(path, options), path
            row = measured(point, workers, options)
            before = point, row["round_s"]
        if row != found:
            write(out, row)
    close(workers)


def check_alike(out: Path, told: dict[str, Any]) -> None:
    """Raise SystemExit if the file has points of another kind of run, which would stand in one table."""
    about, rows = growth.read(out)
    for key in ("cpu", "threads", "versions") if rows else ():
        if about.get(key) != told[key]:
            raise SystemExit(
                f"{out} has points with {key} {about.get(key)}, not {told[key]}: give --again to measure them "
                "anew, or another --out"
            )


def close(workers: dict[str, Worker]) -> None:
    for worker in workers.values():
        worker.close()


def write(out: Path, row: growth.Row) -> None:
    """Add a row to the file, and say it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    so_far = out.read_text() if out.exists() else ""
    with out.open("a") as file:
        # A line that a killed run left unfinished is ended first.
        file.write("\n" * (so_far[-1:] not in ("", "\n")) + json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def draw(path: Path) -> None:
    """Write the table of all points, and the pages and plots that are made of the latest run."""
    path.with_suffix(".md").write_text(growth.report(path))
    for tool in ("docs.py", "site_pictures.py"):
        subprocess.run([sys.executable, str(ROOT / "tools" / tool)], check=True)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    told = parser(__doc__, out="stem of the results' .jsonl and .md")
    add_options(told)
    told.add_argument("--axes", nargs="+", choices=list(growth.AXES), default=list(growth.AXES))
    told.add_argument("--upto", type=float, metavar="X", help="leave out larger x")
    told.add_argument("--rounds", type=int, default=ROUNDS)
    told.add_argument("--prepare", action="store_true", help="only make the models")
    told.add_argument("--again", action="store_true", help="do not go on with what is written")
    told.add_argument("--draw", action="store_true", help="measure nothing")
    return told.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    options.transformers, options.cache_types = False, None
    stem = options.out or RESULTS / f"bench_growth.{date.today()}"
    out = stem.with_name(stem.name + ".jsonl")
    if options.draw:
        if (path := out if options.out else growth.latest()) is None:
            raise SystemExit(f"no results in {RESULTS}: measure first")
        draw(path)
        return
    todo = [
        point
        for point in points()
        if point.axis in options.axes and point.x <= (options.upto or point.x)
    ]
    if options.prepare:
        for path in dict.fromkeys(made(options.folder, p.size, TYPE, p.n_vocab) for p in todo):
            print(f"{path}: {parameters(path):,.1f} M parameters", flush=True)
        return
    if options.again:
        out.unlink(missing_ok=True)
    told = run_facts(options, *PACKAGES[:-1])
    check_alike(out, told)
    write(out, {"about": told | {"command": command(__file__, arguments)}})
    try:
        run(todo, out, options)
    except KeyboardInterrupt:
        print("ended by hand; the same command goes on", file=sys.stderr)
    print(growth.report(out))


if __name__ == "__main__":
    main()
