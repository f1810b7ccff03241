"""How a token's time grows: rows of benchmarks/bench_growth.py, exponents, and tables for the pages.

A row is a line of JSON: an axis, its x, and for each engine and variant the milliseconds of a step, or why it
was left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from run_report import RESULTS, table_head, table_row

Row = dict[str, Any]

AXES = {
    "context": "tokens before",
    "sequences": "sequences of a step",
    "size": "billion parameters",
    "vocabulary": "tokens of the vocabulary",
}
"""What x is."""
PEER = "llama.cpp"
ENGINES = ("aleator", PEER)
OFF = 0.1
"""How far a point may lie from a fitted power."""


class Power(NamedTuple):
    """A fit: time grows as x to the power of ``exponent``, from ``low`` to ``high``."""

    exponent: float
    low: float
    high: float


def read(path: Path) -> tuple[Row, list[Row]]:
    """The facts of the last run in a file, and the rows of all, the last one of each point.

    A line that is no row, such as one that a killed run left unfinished, is not there.
    """
    lines = path.read_text().splitlines() if path.exists() else []
    about: Row = {}
    rows: dict[tuple[str, float], Row] = {}
    for row in filter(None, map(_row, lines)):
        if "about" in row:
            about = row["about"]
        else:
            rows[row["axis"], row["x"]] = row
    return about, [rows[key] for key in sorted(rows)]


def _row(line: str) -> Row | None:
    """What a line holds; None if it is damaged."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    sound = isinstance(row, dict) and ("about" in row or {"axis", "x"} <= row.keys())
    return row if sound else None


def latest(results: Path = RESULTS) -> Path | None:
    """The file of the latest run, if there is one."""
    return max(results.glob("bench_growth.*.jsonl"), default=None)


def best(times: dict[str, float], engine: str) -> float | None:
    """The time of an engine's faster variant."""
    return min((ms for who, ms in times.items() if who.split()[0] == engine), default=None)


def points(rows: Iterable[Row], axis: str, engine: str) -> list[tuple[float, float]]:
    """x and milliseconds of all measured points of an axis."""
    found = [(row["x"], best(row.get("ms", {}), engine)) for row in rows if row["axis"] == axis]
    return [(x, ms) for x, ms in found if ms is not None]


def fit(of: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The exponent of a least-squares fit of log(time) over log(x), and how far the points lie from it."""
    xs, ys = ([math.log(each) for each in column] for column in zip(*of, strict=True))
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - x_mean) ** 2 for x in xs)
    slope = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / spread
    far = max(abs(y - y_mean - slope * (x - x_mean)) for x, y in zip(xs, ys, strict=True))
    return slope, math.expm1(far)


def power(of: Sequence[tuple[float, float]]) -> Power | None:
    """The fit of as many of the last points as lie within ``OFF`` of it; of two at least."""
    for start in range(len(of) - 1):
        exponent, far = fit(of[start:])
        if far <= OFF or start == len(of) - 2:
            return Power(exponent, of[start][0], of[-1][0])
    return None


def shares(rows: Iterable[Row], engine: str) -> tuple[float, float] | None:
    """Of a token of the largest vocabulary: the head's share with the draw, and the draw's.

    What grows with the vocabulary is in proportion to it, as the rest of the model is the same.
    """
    rows = list(rows)
    found = points(rows, "vocabulary", engine)
    if len(found) < 2:
        return None
    (x0, t0), (x1, t1) = found[0], found[-1]
    last = next(row for row in rows if (row["axis"], row["x"]) == ("vocabulary", x1))
    drawing = best(last["drawing_ms"], engine) or 0.0
    return (t1 - t0) / (x1 - x0) * x1 / t1, drawing / t1


def summary(results: Path = RESULTS) -> str:
    """The list of a page: a line for each axis."""
    path = latest(results)
    if path is None:
        return "Not measured yet."
    _, rows = read(path)
    lines = [_axis(rows, axis) for axis in AXES if len(points(rows, axis, ENGINES[0])) > 1]
    told = [
        f"{head:.0%} ({drawing:.1%})"
        for head, drawing in filter(None, (shares(rows, engine) for engine in ENGINES))
    ]
    if told:
        lines.append(
            f"- Head and draw (draw alone) of the largest vocabulary's token: {', '.join(told)}."
        )
    left_out = [f"{row['axis']} {row['x']:,g}" for row in rows if "left_out" in row]
    if left_out:
        lines.append(f"- Left out: {', '.join(left_out)}.")
    return "\n".join([*lines, "", f"[All points](../benchmarks/results/{path.stem}.md)."])


def _axis(rows: list[Row], axis: str) -> str:
    """Times of the first and the last point of an axis, ratios and exponents."""
    ours, theirs = (points(rows, axis, engine) for engine in ENGINES)
    (first, ms), (last, most) = ours[0], ours[-1]
    line = f"- {AXES[axis].capitalize()}, {first:,g} to {last:,g}: {shown(ms)} to {shown(most)} ms"
    slower = [dict(theirs)[x] / ms for x, ms in ours if x in dict(theirs)]
    if slower:
        line += f" ({PEER} {slower[0]:.2f} to {slower[-1]:.2f} times)"
    fits = [power(of) for of in (ours, theirs)]
    if fits[0]:
        line += f", exponent {_told(fits[0], first)}"
    if fits[1]:
        line += f" ({_told(fits[1], first)})"
    return line + "."


def shown(ms: float) -> str:
    """Milliseconds in three digits, or whole ones."""
    return f"{ms:.3g}" if ms < 999.5 else f"{ms:,.0f}"


def _told(of: Power, first: float) -> str:
    """An exponent, and from where it holds if not from the first point on."""
    return f"{of.exponent:.2f}" + (f" from {of.low:,g}" if of.low > first else "")


def report(path: Path) -> str:
    """All points of a run as Markdown."""
    about, rows = read(path)
    lines = ["# How a token's time grows, against llama.cpp", ""]
    lines += [f"- {key}: {value}" for key, value in about.items()]
    for axis, what in AXES.items():
        of_axis = [row for row in rows if row["axis"] == axis]
        if not of_axis:
            continue
        lines += ["", f"## {axis.capitalize()}", ""]
        lines += table_head(
            f"{what}:",
            "aleator ms:",
            "llama.cpp flash / plain ms:",
            "ratio:",
            "draw alone ms:",
            "left out",
        )
        lines += [_line(row) for row in of_axis]
        for engine in ENGINES:
            if found := power(points(rows, axis, engine)):
                exponent, low, high = found
                lines += [
                    "",
                    f"{engine}: x to the power of {exponent:.2f}, from {low:,g} to {high:,g}.",
                ]
    return "\n".join([*lines, ""])


def _line(row: Row) -> str:
    """A row of the table of its axis."""
    ms, drawing = row.get("ms", {}), row.get("drawing_ms", {})
    ours, theirs = (best(ms, engine) for engine in ENGINES)
    both = " / ".join(f"{each:.3f}" for who, each in ms.items() if who.startswith(PEER))
    draws = " / ".join(f"{each:.3f}" for engine in ENGINES if (each := best(drawing, engine)))
    ratio = f"{theirs / ours:.2f}" if ours and theirs else ""
    return table_row(
        f"{row['x']:,g}",
        f"{ours:.3f}" if ours else "",
        both,
        ratio,
        draws,
        row.get("left_out", ""),
    )
