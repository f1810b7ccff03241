"""Explanations as text: tables, bars, and curves made of characters."""

from __future__ import annotations

import math
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Container, Sequence
from itertools import accumulate, pairwise

from aleator.samplers.explained import Explained, Shape, Stage, Trace

FULL, GAINED, GHOST = "█", "▓", "░"
LEVELS = "▁▂▃▄▅▆▇█"
LABEL = 24
"""Maximum width of a token's text, in columns."""


def percent(p: float) -> str:
    """A probability with three digits or as a power of ten."""
    if p == 0 or p >= 0.1:
        return f"{100 * p:.1f}%"
    return f"{100 * p:.2f}%" if p >= 0.0001 else f"{100 * p:.1g}%"


def table(e: Explained) -> str:
    """The samplers that do something, one per line, with what they removed below."""
    head = ("sampler", "left", "removed", "mass cut", "moved", "entropy", "choices", "best", "time")
    b = e.before
    rows = [head, ("logits", f"{b.candidates:,}", "", "", "", *_shape(b), "")]
    for s in e.active:
        left, time = f"{s.after.candidates:,}", f"{s.microseconds:.1f} us"
        removed, cut = (f"{s.n_removed:,}", percent(s.mass_cut)) if s.n_removed else ("", "")
        moved = percent(s.moved) if s.moved else ""
        rows.append((s.label, left, removed, cut, moved, *_shape(s.after), time))
    lines = aligned(rows)
    lines += [line for s in e.active for line in _notes(s)]
    if len(e.active) < len(e.stages):
        lines.append(f"neutral: {', '.join(s.name for s in e.stages if s.neutral)}")
    lines.append(draw_line(e))
    return "\n".join(lines)


def draw_line(e: Explained) -> str:
    """The drawn token, in words."""
    if e.draw is None:
        return "nothing is drawn: no sampler selects"
    d = e.draw
    key = f"seed {d.seed}, position {d.position}"
    if d.completion:
        key += f", completion {d.completion}"
    if e.phase:
        key += f"; phase {e.phase}"
    if d.mark:
        key += f"; {d.mark}"
    return (
        f"drawn: {d.token.label} (id {d.token.id}), probability {percent(d.before)} -> "
        f"{percent(d.probability)}; {key}"
    )


def bars(e: Explained, width: int, top: int | None) -> str:
    """A line per token: its probability after the chain over that before."""
    traces = e.shown(top)
    labels = [_cut(t.token.label, LABEL) for t in traces]
    room = max(map(columns, labels), default=0)
    drawn = None if e.draw is None else e.draw.token.id
    names = [e.stages[t.removed_by].name if t.removed_by is not None else "" for t in traces]
    fixed = 2 + room + 2 + 7 + 2 + 7 + 2
    length = max(10, width - fixed - max((len(n) + 2 for n in names), default=0))
    scale = max((max(t.before, t.after) for t in traces), default=1.0)
    lines = []
    for trace, label, name in zip(traces, labels, names, strict=True):
        mark = ">" if trace.token.id == drawn else " "
        after = "cut" if name else percent(trace.after)
        bar = _bar(trace, length / scale)
        lines.append(
            f"{mark} {_padded(label, room)}  {percent(trace.before):>7}  {after:>7}  {bar}"
            f"{f'  {name}' if name else ''}".rstrip()
        )
    return "\n".join(lines)


def to_ascii(text: str) -> str:
    """Replace block characters, for terminals without them."""
    return text.translate(str.maketrans(GAINED + GHOST + LEVELS, "+._.-:=*%#"))


def step_line(e: Explained) -> str:
    """One step of many on one line."""
    removed = ", ".join(
        f"{s.name} -{s.n_removed:,} ({percent(s.mass_cut)})" for s in e.active if s.n_removed
    )
    state = ", ".join(
        f"{k} {v:.4g}"
        for s in e.active
        for k, v in s.state.items()
        if s.label != f"{s.name}={v}"  # a temperature that is always the same
    )
    drawn = ""
    if e.draw is not None:
        d = e.draw
        chance = f"{percent(d.before)} -> {percent(d.probability)}"
        drawn = f"{d.position:>4}  {_padded(_cut(d.token.label, 16), 16)} {chance:<17}"
    shapes = (
        f"{e.before.entropy:5.2f} -> {e.after.entropy:5.2f} bits  {e.after.candidates:>7,} left"
    )
    return "  ".join(part for part in (drawn, e.phase, shapes, removed, state) if part)


def summary(steps: Sequence[Explained]) -> str:
    """A generation: entropy, mass cut and state over the steps, as curves."""
    rows: list[tuple[str, ...]] = [("", "first", "mean", "last", "over the steps")]
    for name, values in curves(steps).items():
        mean = math.fsum(values) / len(values)
        shown = (f"{v:.4g}" for v in (values[0], mean, values[-1]))
        rows.append((name, *shown, sparkline(values)))
    return "\n".join(aligned(rows, left=(0, 4)))


def curves(steps: Sequence[Explained]) -> dict[str, list[float]]:
    """The quantities that change from step to step, by name, one value per step."""
    made: dict[str, list[float]] = {
        "entropy of the logits, bits": [e.before.entropy for e in steps],
        "entropy after the chain, bits": [e.after.entropy for e in steps],
        "candidates left": [float(e.after.candidates) for e in steps],
    }
    if all(e.draw is not None for e in steps):
        made["probability drawn, before"] = [e.draw.before for e in steps if e.draw]
        made["probability drawn, after"] = [e.draw.probability for e in steps if e.draw]
    for name, values in mass_cuts(steps).items():
        made[f"mass cut by {name}"] = values
    return made | states(steps)


def mass_cuts(steps: Sequence[Explained]) -> dict[str, list[float]]:
    """Mass cut per step by each sampler that ever removes a token."""
    made: dict[str, list[float]] = {}
    for name, stages in by_sampler(steps):
        if any(s is not None and s.n_removed for s in stages):
            made[_unique(name, made)] = [0.0 if s is None else s.mass_cut for s in stages]
    return made


def states(steps: Sequence[Explained]) -> dict[str, list[float]]:
    """State per step of each sampler whose state changes."""
    made: dict[str, list[float]] = {}
    for sampler, stages in by_sampler(steps):
        by_stage = [{} if s is None else s.state for s in stages]
        for key in dict.fromkeys(key for state in by_stage for key in state):
            pending = key.startswith("pending")
            last = next(state[key] for state in by_stage if key in state)
            # A missing temperature means that none is pending; any other missing value is unchanged.
            values = [last := float(state.get(key, 1.0 if pending else last)) for state in by_stage]
            if min(values) != max(values):
                made[_unique(key if pending else f"{key} of {sampler}", made)] = values
    return made


def by_sampler(steps: Sequence[Explained]) -> list[tuple[str, list[Stage | None]]]:
    """Each sampler's name with its stage in every step; None where a step's phase does not have the sampler."""
    made: dict[tuple[str, int], list[Stage | None]] = {}
    for at, step in enumerate(steps):
        seen: Counter[str] = Counter()
        for stage in step.stages:
            place = stage.name, seen[stage.name]
            made.setdefault(place, [None] * len(steps))[at] = stage
            seen[stage.name] += 1
    return [(name, stages) for (name, _), stages in made.items()]


def sparkline(values: Sequence[float], width: int = 50) -> str:
    """Values drawn between their minimum and maximum; neighbours are averaged if there are too many."""
    n = min(len(values), width)
    bounds = [len(values) * i // n for i in range(n + 1)]
    means = [math.fsum(values[a:b]) / (b - a) for a, b in pairwise(bounds)]
    low, high = min(means), max(means)
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
        return LEVELS[0] * n
    return "".join(LEVELS[min(7, int(8 * (v - low) / (high - low)))] for v in means)


def columns(text: str) -> int:
    """Width of a text on a terminal, in columns."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def _unique(name: str, taken: dict[str, list[float]]) -> str:
    number = 2
    unique = name
    while unique in taken:
        unique, number = f"{name} #{number}", number + 1
    return unique


def _shape(shape: Shape) -> tuple[str, str, str]:
    return f"{shape.entropy:.2f} bits", f"{shape.choices:.1f}", percent(shape.top)


def _notes(stage: Stage) -> list[str]:
    """The tokens that a sampler removed, and its state."""
    lines = []
    if stage.removed:
        named = ", ".join(f"{r.token.label} {percent(r.probability)}" for r in stage.removed)
        more = stage.n_removed - len(stage.removed)
        lines.append(f"{stage.name} removed {named}{f' and {more:,} more' if more else ''}")
    if stage.state:
        lines.append(f"{stage.name}: {', '.join(f'{k} {v:.6g}' for k, v in stage.state.items())}")
    return lines


def _bar(trace: Trace, scale: float) -> str:
    before, after = round(trace.before * scale), round(trace.after * scale)
    if trace.removed_by is not None:
        return GHOST * max(before, 1)
    if after >= before:
        return FULL * before + GAINED * (after - before)
    return FULL * after + GHOST * (before - after)


def _cut(text: str, width: int) -> str:
    if columns(text) <= width:
        return text
    widths = list(accumulate(map(columns, text)))
    return f"{text[: bisect_right(widths, width - 3)]}..."


def _padded(text: str, width: int) -> str:
    return text + " " * (width - columns(text))


def aligned(rows: Sequence[tuple[str, ...]], left: Container[int] = (0,)) -> list[str]:
    """Rows as lines, with columns aligned to the right except those in ``left``."""
    widths = [max(columns(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            _padded(cell, width) if i in left else " " * (width - columns(cell)) + cell
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
